"""The analytic cost model against figures that are known from elsewhere."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.frontend import load_job
from recycle_compiler.frontend.gpt_model import (
    DEFAULT_EFFICIENCY_PPM,
    DEFAULT_OVERHEAD,
    DEVICES,
    GptModel,
    ModelRun,
    estimate_stages,
    layer_costs,
    stage_work,
)
from recycle_compiler.frontend.optimizer_state import StateRules
from recycle_compiler.ir.layers import PER_LAYER
from recycle_compiler.ir.layout import ring_time
from tests.compiler.frontend.job_texts import codes, errors, marked, parse

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GPT3_6_7B = GptModel(layers=32, hidden=4096, heads=32, sequence=2048, vocabulary=50304)
GPT3_175B = GptModel(layers=96, hidden=12288, heads=96, sequence=2048, vocabulary=50304)
MEGATRON_145B = GptModel(layers=80, hidden=12288, heads=96, sequence=2048, vocabulary=51200)


def run(
    stages: int = 1, pipelines: int = 1, tensor: int = 1, micro: int = 1, device: str = "a100"
) -> ModelRun:
    return ModelRun(stages, pipelines, tensor, micro, DEVICES[device], DEFAULT_EFFICIENCY_PPM)


@pytest.mark.parametrize(
    ("model", "billions"), [(GPT3_6_7B, 6.7), (GPT3_175B, 175.0), (MEGATRON_145B, 145.6)]
)
def test_parameters_are_those_of_the_papers(model: GptModel, billions: float) -> None:
    assert model.parameters() == pytest.approx(billions * 1e9, rel=0.03)


@pytest.mark.parametrize("model", [GPT3_6_7B, GPT3_175B, MEGATRON_145B])
def test_operations_are_six_per_parameter_and_token(model: GptModel) -> None:
    work = stage_work(model, run(stages=4, micro=2))
    total = sum(one.forward + one.backward_input + one.backward_weight for one in work)
    assert total == pytest.approx(6 * model.parameters() * 2 * model.sequence, rel=0.1)


def test_activations_of_a_layer_are_those_of_the_published_formula() -> None:
    """34 s b h bytes, and a log-sum of 4 bytes for each head and token in place of the score matrix."""
    middle = estimate_stages(GPT3_6_7B, run(stages=4, micro=3))[1]
    assert middle.activation == 8 * 3 * 2048 * (34 * 4096 + 4 * 32)
    assert middle.kept_for_weight == 8 * 3 * 2048 * 32 * 4096


def test_time_is_work_at_the_stated_share_of_the_peak() -> None:
    work, costs = stage_work(GPT3_6_7B, run(stages=4))[1], estimate_stages(GPT3_6_7B, run(stages=4))[1]
    assert costs.backward_weight == pytest.approx(work.backward_weight / (312e12 * 0.45) * 1e9, abs=1)
    assert costs.forward == pytest.approx(work.forward / (312e12 * 0.45) * 1e9, abs=1)
    assert costs.transfer == pytest.approx(2048 * 4096 * 2 / 25e9 * 1e9, abs=1)


@pytest.mark.parametrize(("staggered", "size"), [(False, 18), (True, 34)])
def test_memory_of_a_worker_with_the_whole_state(staggered: bool, size: int) -> None:
    """bf16 weights and fp32 gradients, 6; master weight and moments, 12; with stagger what undoes a step, 12,
    and the gradients that are kept with it, 4."""
    costs = estimate_stages(GPT3_6_7B, replace(run(stages=4), state=StateRules(0, staggered)))
    assert sum(stage.resident for stage in costs) == size * GPT3_6_7B.parameters()
    assert sum(stage.parameters for stage in costs) == 14 * GPT3_6_7B.parameters()
    assert {(stage.state, stage.gather) for stage in costs} == {(0, 0)}


@pytest.mark.parametrize(("staggered", "size"), [(False, 12), (True, 28)])
def test_memory_and_times_of_a_sharded_state(staggered: bool, size: int) -> None:
    """Everybody has weights and gradients; the rest is shared out, and so is the traffic of a step."""
    how = replace(run(stages=4, pipelines=8), state=StateRules(2, staggered))
    for stage, whole in zip(
        estimate_stages(GPT3_6_7B, how), estimate_stages(GPT3_6_7B, run(4, 8)), strict=True
    ):
        assert (stage.resident, stage.state) == (6 * stage.counts, size * stage.counts)
        assert stage.parameters == 2 * stage.counts + 12 * stage.counts * 2 // 8
        assert stage.optimizer == whole.optimizer
        # A sum for owners sends 7/8 of the gradients once, and 1/8 more; all workers get 7/8 of the weights.
        assert stage.reduce == pytest.approx(whole.reduce * 8 / 14, abs=1)
        assert stage.gather == pytest.approx(2 * stage.counts * 7 / 8 / 25, abs=1)


def test_the_ends_carry_the_embedding_and_the_head() -> None:
    first, middle, _, last = estimate_stages(GPT3_6_7B, run(stages=4))
    assert first.resident - middle.resident == 34 * (50304 + 2048) * 4096
    assert last.resident - middle.resident == 34 * (50304 + 2) * 4096
    assert last.forward > first.forward > middle.forward
    assert last.activation > first.activation > middle.activation
    assert first.backward_input == middle.backward_input


def test_a_ring_of_one_costs_nothing() -> None:
    assert {stage.reduce for stage in estimate_stages(GPT3_6_7B, run(stages=4))} == {0}
    two, four = (estimate_stages(GPT3_6_7B, run(pipelines=count))[0].reduce for count in (2, 4))
    assert four == pytest.approx(two * 1.5, rel=1e-6)


def test_tensor_parallelism_divides_work_and_adds_messages() -> None:
    one, two = (estimate_stages(GPT3_6_7B, run(stages=4, tensor=count))[1] for count in (1, 2))
    assert two.resident == one.resident // 2
    assert two.activation == one.activation // 2
    assert two.backward_weight == pytest.approx(one.backward_weight / 2, abs=1)
    message = 2048 * 4096 * 2
    assert two.forward - one.forward / 2 == pytest.approx(8 * 2 * message / 300e9 * 1e9, abs=20)


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(32, 4, (8, 8, 8, 8)), (9, 4, (2, 2, 3, 2)), (10, 4, (2, 3, 3, 2)), (11, 4, (3, 3, 3, 2)), (5, 1, (5,))],
)
def test_layers_left_over_go_before_the_last_stage(layers: int, stages: int, split: tuple[int, ...]) -> None:
    assert GptModel(layers, 8, 2, 4, 10).layers_per_stage(stages) == split


def models(most_layers: int) -> st.SearchStrategy[GptModel]:
    return st.builds(
        GptModel,
        layers=st.integers(8, most_layers),
        hidden=st.integers(1, 20_000),
        heads=st.integers(1, 128),
        sequence=st.integers(1, 8192),
        vocabulary=st.integers(1, 200_000),
    )


@given(models(200), st.integers(1, 8), st.integers(1, 8))
def test_any_model_has_whole_positive_costs(model: GptModel, stages: int, tensor: int) -> None:
    assert sum(model.layers_per_stage(stages)) == model.layers
    assert max(model.layers_per_stage(stages)) - min(model.layers_per_stage(stages)) <= 1
    for stage in estimate_stages(model, run(stages, 3, tensor, 2)):
        assert min(stage.forward, stage.backward_input, stage.backward_weight) >= 1
        assert 0 < stage.kept_for_weight <= stage.activation
        assert all(type(getattr(stage, name)) is int for name in stage.__slots__)


@given(models(100), st.integers(1, 8), st.integers(1, 8), st.integers(1, 6))
def test_the_layers_of_a_stage_add_up_to_it(
    model: GptModel, stages: int, tensor: int, pipelines: int
) -> None:
    how = run(stages, pipelines, tensor, 2)
    layers, cut = layer_costs(model, how), model.usual_cut(stages)
    assert (layers.count, sum(cut)) == (model.layers + 2, model.layers + 2)
    assert list(layers.verify()) == []
    # The embedding alone holds what it keeps for W, and on a stage less.
    embedding = -(-2 * how.micro * model.sequence * model.hidden // tensor)
    first = 0
    for stage, costs in enumerate(estimate_stages(model, how)):
        end = first + cut[stage]
        for name in PER_LAYER:
            values = getattr(layers, name)
            summed = (
                values[end - 1] if name == "transfer" and end <= model.layers + 1 else sum(values[first:end])
            )
            if name == "reduce":
                summed = ring_time(summed, pipelines)
            if name == "transfer" and stage == stages - 1:
                continue
            # Each is rounded up: layers one by one, a stage once; bytes of parameters before they are scaled.
            rounding = cut[stage] * (34 if name in ("parameters", "resident", "reduce", "optimizer") else 3)
            spare = embedding if name == "activation" and stage == 0 else 0
            assert 0 <= summed - getattr(costs, name) <= rounding + spare, name
        first = end


def test_the_ends_of_a_model_may_be_stages_of_their_own() -> None:
    cut = (1, 16, 16, 1)
    embedding, _, block, head = estimate_stages(GPT3_6_7B, run(stages=4), cut)
    assert embedding.backward_input == 1
    assert embedding.kept_for_weight == embedding.activation
    assert head.forward < block.forward
    parallel = "parallel { pipeline = 4  data = 3  cut = [1, 16, 16, 1] }"
    job = parse(MODEL, "device a100", batch=BATCH, profile="", parallel=parallel)
    assert (job.cut, list(job.verify())) == (cut, [])


def test_a_model_is_in_layers() -> None:
    job = load_job(EXAMPLES / "gpt3-6.7b.job").spec
    assert job.cut == (9, 8, 8, 9)
    assert job.layer_costs is not None
    messages = 4 * 2 * 4 * 2048 * 4096 // 2
    assert job.overhead == DEFAULT_OVERHEAD + messages
    assert (job.layer_costs.count, job.layer_costs.capacity) == (34, (80 << 30) - job.overhead)


MODEL = "model gpt { layers = 32  hidden = 4096  heads = 32  sequence = 2048  vocabulary = 50304 }"
BATCH = "batch { global = 24  micro = 2 }"


def test_the_example_fits_its_gpus() -> None:
    job = load_job(EXAMPLES / "gpt3-6.7b.job").spec
    assert (job.unit, job.memory_unit, job.microbatches, job.failures) == ("ms", "byte", 32, 4)
    expected = estimate_stages(GPT3_6_7B, run(4, 4, 2, 4))
    assert job.forward == tuple(stage.forward for stage in expected)
    assert job.transfer == tuple(stage.transfer for stage in expected[:-1])
    assert job.capacity == tuple((80 << 30) - job.overhead - stage.resident for stage in expected)


def test_memory_may_be_left_out() -> None:
    job = parse(MODEL, "device h200", batch=BATCH, profile="")
    assert (job.microbatches, job.capacity) == (4, (None,) * 4)


def test_efficiency_scales_time() -> None:
    slow, fast = (
        parse(MODEL, f"device h100 {{ efficiency = {share}% }}", batch=BATCH, profile="").backward_weight[1]
        for share in (25, 50)
    )
    assert slow == pytest.approx(2 * fast, abs=2)


@pytest.mark.parametrize(
    ("blocks", "changed", "code", "place"),
    [
        ((MODEL,), {}, "missing", "model"),
        ((MODEL, "device v100"), {}, "unknown-device", "v100"),
        ((MODEL.replace("gpt", "bert"), "device a100"), {}, "unknown-model", "bert"),
        ((MODEL, "device a100 { efficiency = 0.5% }"), {}, "range", "0.5%"),
        ((MODEL, "device a100 { efficiency = 101% }"), {}, "range", "101%"),
        ((MODEL.replace("layers = 32", "layers = 3"), "device a100"), {}, "range", "3"),
        ((MODEL.replace("heads = 32", "heads = 33"), "device a100"), {}, "divide", "33"),
        (
            (MODEL, "device a100"),
            {"parallel": "parallel { pipeline = 4 data = 3 tensor = 3 }"},
            "divide",
            "32",
        ),
        ((MODEL.replace("hidden = 4096", "hidden = 16777216"), "device a100"), {}, "too-large", "model"),
        ((MODEL, "device a100"), {"profile": "profile { forward = 1 }"}, "conflict", "model"),
        ((MODEL, "device a100"), {"batch": "batch { microbatches = 6 }"}, "missing", "batch"),
        ((MODEL, "device a100"), {"memory": "memory { capacity = 80 }"}, "unit", "80"),
    ],
)
def test_a_model_that_cannot_be_costed(
    blocks: tuple[str, ...], changed: dict[str, str], code: str, place: str
) -> None:
    error = errors(*blocks, **({"batch": BATCH, "profile": ""} | changed))
    assert (code, place) in list(zip(codes(error), marked(error), strict=True))
    assert all(one.hint for one in error.diagnostics)
