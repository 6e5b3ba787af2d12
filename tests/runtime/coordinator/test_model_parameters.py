"""Faults of a model as a whole, from what its stages say of their parameters."""

from recycle_runtime.coordinator.model_parameters import ModelParameters
from recycle_runtime.protocol.messages.steps import ChunkGradients, FirstGradients, ParameterLook, Parameters

WTE = ParameterLook("wte.weight", 0, (50, 8), "Embedding", True, "11aa")
HEAD = ParameterLook("head.weight", 1, (50, 8), "Linear", False, "11aa")


def heard(*said: Parameters) -> ModelParameters:
    model = ModelParameters(len(said))
    assert [model.hear(stage, each) for stage, each in enumerate(said)] == [
        stage == len(said) - 1 for stage in range(len(said))
    ]
    return model


def looking(*looks: ParameterLook) -> str | None:
    """Each on a stage of its own."""
    model = heard(*(Parameters(1, 0, (), (look,)) for look in looks))
    assert model.warning() is None
    return model.mistake()


def test_nothing_is_said_of_a_good_model() -> None:
    model = heard(Parameters(2, 0, (), ()), Parameters(0, 0, (), ()))
    assert model.mistake() is None and model.warning() is None
    assert not model.hear(0, Parameters(2, 0, (), ())), "said again by another worker"


def test_parameters_that_no_optimizer_has() -> None:
    model = heard(Parameters(2, 0, (), ()), Parameters(0, 12, tuple("abcdefgh"), ()))
    assert model.mistake() is None
    assert model.warning() == (
        "warning: the optimizer leaves out a, b, c, d, e, f, g, h and 4 more, which require gradients: "
        "they are not trained (requires_grad_(False) says so)"
    )


def test_an_optimizer_of_nothing() -> None:
    model = heard(Parameters(0, 1, ("a",), ()), Parameters(0, 1, ("b",), ()))
    assert model.mistake() == (
        "the optimizer has no parameter, so nothing would be trained; it leaves out a, b"
    )


def test_a_frozen_model_is_for_evaluation() -> None:
    frozen = Parameters(0, 0, (), ())
    model = heard(frozen, frozen)
    assert str(model.mistake()).startswith("no parameter of the model requires a gradient")
    model = ModelParameters(1, may_be_frozen=True)
    assert model.hear(0, frozen) and model.mistake() is None


def test_gradients_are_judged_once_all_stages_have_spoken() -> None:
    model = ModelParameters(2)
    first, last = (ChunkGradients(chunk, 2, 0, (), gives_back=chunk == 0) for chunk in range(2))
    assert model.hear_gradients(1, FirstGradients(4, (last,))) is None
    reached = model.hear_gradients(0, FirstGradients(4, (first,)))
    assert reached is not None and reached.mistake() is None
    assert list(reached.warnings()) == [
        "warning: stage 1 gave no gradient back in step 4, so stage 0 is not trained; is its input detached?"
    ]
    assert model.hear_gradients(0, FirstGradients(9, (first,))) is None, "said again in another generation"


def test_copies_of_an_embedding() -> None:
    why = looking(WTE, HEAD)
    assert why is not None
    assert why.startswith(
        "wte.weight and head.weight begin with the same numbers, and would be trained apart"
    )
    assert "TIED = [('wte.weight', 'head.weight')]" in why
    other = WTE._replace(layer=1, numbers="22bb")
    assert str(looking(WTE, other)).startswith("two embeddings of the same shape are called wte.weight")


def test_what_only_looks_alike() -> None:
    assert looking(WTE, HEAD._replace(numbers="22bb")) is None, "a head of its own"
    assert looking(WTE, HEAD._replace(shape=(51, 8))) is None
    assert looking(WTE, HEAD._replace(layer=0)) is None, "within a layer anything may be one"
    assert looking(WTE._replace(numbers=""), HEAD._replace(numbers="")) is None, "all zeros"
    # Layers that are copied from one another begin alike: nn.TransformerEncoder makes such.
    assert looking(HEAD, HEAD._replace(layer=2, name="other.weight")) is None
