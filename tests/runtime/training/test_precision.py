"""bf16 by autocast, and bf16 weights with float32 copies, equal a plain loop that does the same.

One pipeline adds up gradients in the order of a plain loop, so the bits are the same but for products in
bf16, which are rounded as the number of threads has it; several add them up in another order.
"""

from pathlib import Path

import pytest
import torch

from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import FlatGradients
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers
from recycle_runtime.program.loading import load_program
from tests.runtime.training.compare import changed
from tests.runtime.training.plain_loop import Plain, train_plainly
from tests.runtime.training.test_convert import Held, built, bundle_of, run
from tests.runtime.training.test_moving import SCRIPTED, every_chunk

SINGLE = """
_layers, _batches = layers, batches
def layers():
    return [(name, layer.float()) for name, layer in _layers()]
def batches(seed):
    for points, target in _batches(seed):
        yield points.float(), target.float()
CLIP_NORM = None
PRECISION = "{precision}"
"""
STEPS = 5


def program_in(folder: Path, precision: str, more: str = "") -> str:
    return changed(folder, SCRIPTED, SINGLE.format(precision=precision) + more)


def farthest(held: Held, plain: Plain) -> float:
    """The largest difference of a weight."""
    states = [chunk.module.state_dict() for chunk in every_chunk(held)]
    differences = [
        (tensor.float() - plain.model[name].float()).abs().max()
        for state in states
        for name, tensor in state.items()
    ]
    return float(max(differences))


@pytest.mark.parametrize("precision", ["bf16", "bf16-weights"])
def test_one_pipeline_equals_a_plain_loop(tmp_path: Path, precision: str) -> None:
    """With backwards in two halves."""
    program = program_in(tmp_path, precision)
    microbatches = 4
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 1, microbatches)
    held = built(bundle, program)
    losses = run(bundle, held, 0, STEPS)
    plain = train_plainly(program, microbatches, STEPS)
    exact = train_plainly(program_in(tmp_path, ""), microbatches, STEPS)
    assert plain.losses != exact.losses, "the precision makes a difference"
    # Products in bf16 are rounded as the number of threads has it, and weights then keep the difference.
    within = 1e-6 if precision == "bf16" else 1e-2
    assert losses == pytest.approx(plain.losses, rel=within)
    assert farthest(held, plain) < within
    dtypes = {tensor.dtype for chunk in every_chunk(held) for tensor in chunk.module.parameters()}
    assert dtypes == {torch.float32 if precision == "bf16" else torch.bfloat16}


FUSED = """
def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.05, fused=True)
"""


def test_weights_that_were_cast_follow_an_optimizer_that_moves_no_version(tmp_path: Path) -> None:
    """Fused steps write to weights without a word: what was cast before them must not be used again."""
    program = program_in(tmp_path, "bf16", FUSED)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 1, 4)
    held = built(bundle, program)
    losses = run(bundle, held, 0, STEPS)
    assert all(chunk.split.bytes_held for chunk in every_chunk(held))
    plain = train_plainly(program, 4, STEPS)
    assert losses == pytest.approx(plain.losses, rel=1e-5)
    assert farthest(held, plain) < 1e-5


@pytest.mark.parametrize("precision", ["bf16", "bf16-weights"])
@pytest.mark.parametrize("clip", [0.5, 1e6])
def test_several_pipelines_with_steps_that_are_undone(tmp_path: Path, precision: str, clip: float) -> None:
    program = program_in(tmp_path, precision, f"CLIP_NORM = {clip}")
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    losses = run(bundle, held, 0, 4)
    for chunk in every_chunk(held):
        chunk.stepper.rollback()
        chunk.stand(3, None)
    losses[3:] = run(bundle, held, 3, STEPS)
    plain = train_plainly(program, 4, STEPS)
    assert losses == pytest.approx(plain.losses, rel=2e-2)
    assert farthest(held, plain) < 2e-2


def test_going_back_restores_the_copies(tmp_path: Path) -> None:
    """Bit by bit: the copies remember what bf16 cannot show."""
    program = program_in(tmp_path, "bf16-weights")
    bundle = bundle_of(tmp_path, (5,), (0,), 1, 4)
    held = built(bundle, program)
    run(bundle, held, 0, 3)
    (chunk,) = every_chunk(held)
    before = [tensor.clone() for layer in chunk.layers for tensor in layer.state()["masters"]]
    weights = [weight.clone() for weight in chunk.module.parameters()]
    run(bundle, held, 3, 4)
    assert all(master.dtype == torch.float32 for master in before)
    chunk.stepper.rollback()
    after = [tensor for layer in chunk.layers for tensor in layer.state()["masters"]]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(weights, chunk.module.parameters(), strict=True))


def test_a_checkpoint_keeps_the_copies(tmp_path: Path) -> None:
    program = load_program(program_in(tmp_path, "bf16-weights"))
    first, second = (
        [Layer(program, number, *named) for number, named in enumerate(build_layers(program, seed))]
        for seed in (0, 1)
    )
    for one, other in zip(first, second, strict=True):
        state = one.state()
        assert all(tensor.dtype == torch.float32 for tensor in state["masters"])
        other.load(state)
        assert other.stepped is not None and other.stepped.masters is not None
        for master, value in zip(other.stepped.masters.parameters, state["masters"], strict=True):
            assert torch.equal(master, value)
        del state["masters"]
        state["model"] = {name: 2 * tensor.float() for name, tensor in state["model"].items()}
        other.load(state)
        for master, weight in zip(other.stepped.masters.parameters, other.parameters, strict=True):
            assert torch.equal(master, weight.float()), "weights of another run are taken as they are"


@pytest.mark.parametrize(("value", "words"), [("fp16", "needs a loss scaler"), ("int8", "must be")])
def test_other_precisions_are_refused(tmp_path: Path, value: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        load_program(program_in(tmp_path, value))


def test_gradients_of_bf16_weights_are_added_up_in_float32(tmp_path: Path) -> None:
    """In bf16 a sum of ones ends at 256."""
    program = load_program(program_in(tmp_path, "bf16-weights"))
    layer = Layer(program, 0, "", torch.nn.Linear(3, 3, bias=False))
    gradients = FlatGradients(layer.parameters)
    (weight,) = layer.parameters
    assert weight.dtype == torch.bfloat16
    for _ in range(300):
        weight.backward(torch.ones_like(weight))
    gradients.gather()
    (buffer,) = gradients.buffers
    assert buffer.dtype == torch.float32
    assert weight.grad is not None and bool((weight.grad == 300).all())
    assert layer.stepped is not None and layer.stepped.masters is not None
    layer.stepped.masters.take_gradients()
    (master,) = layer.stepped.masters.parameters
    assert master.grad is not None and bool((master.grad == 300).all())
