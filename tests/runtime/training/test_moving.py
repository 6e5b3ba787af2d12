"""Schedules, averages and groups by name equal the loop that a user would write, in float64.

Workers as threads, steps that are undone and made again, and the model cut elsewhere in between.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.execution.chunk import Chunk, convert
from recycle_runtime.execution.digest import tensor_digest
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import FlatGradients
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import build_layers
from tests.runtime.training.compare import changed
from tests.runtime.training.plain_loop import Plain, train_plainly
from tests.runtime.training.test_convert import Held, built, bundle_of, run, stand

SCRIPTED = str(Path(__file__).resolve().parent / "programs" / "scripted.py")
STEPS = 8


def averages_of(held: Held) -> dict[str, torch.Tensor]:
    """Under the names of the whole model."""
    found: dict[str, torch.Tensor] = {}
    for layer in (layer for chunks in held.values() for chunk in chunks.values() for layer in chunk.layers):
        for part in () if layer.stepped is None else layer.stepped.moving.parts.values():
            if isinstance(part, torch.optim.swa_utils.AveragedModel):
                state: dict[str, torch.Tensor] = part.module.state_dict()
                found |= {f"{layer.name}.{name}": tensor for name, tensor in state.items()}
    return found


def check(held: Held, losses: list[float], plain: Plain) -> None:
    assert losses == pytest.approx(plain.losses, rel=1e-12)
    for chunks in held.values():
        for chunk in chunks.values():
            for name, tensor in chunk.module.state_dict().items():
                torch.testing.assert_close(tensor, plain.model[name], rtol=1e-11, atol=1e-12)
    averages = averages_of(held)
    assert averages.keys() == plain.average.keys()
    for name, tensor in averages.items():
        torch.testing.assert_close(tensor, plain.average[name], rtol=1e-11, atol=1e-12)


SCHEDULES = {
    "OneCycleLR": "OneCycleLR(o, max_lr=[3e-2] * len(o.param_groups), total_steps=40)",
    "CosineAnnealingWarmRestarts": "CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2)",
    "SequentialLR": "SequentialLR(o, [LinearLR(o, 0.1, total_iters=3), ExponentialLR(o, 0.8)], [3])",
    "ChainedScheduler": "ChainedScheduler([LinearLR(o, 0.1, total_iters=3), ExponentialLR(o, 0.8)])",
    "a rate in a tensor": "LambdaLR(o, lambda step: torch.tensor(1 / (1 + step)).double().item())",
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_schedule(tmp_path: Path, name: str) -> None:
    """Early steps that are clipped after all are undone with their schedule, and made again."""
    change = f"from torch.optim.lr_scheduler import *\ndef schedule(o): return {SCHEDULES[name]}\n"
    program = changed(tmp_path, SCRIPTED, change)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    losses = run(bundle, held, 0, STEPS)
    redone = {chunk.stepper.progress.redone for chunks in held.values() for chunk in chunks.values()}
    assert redone == {1}
    plain = train_plainly(program, 4, STEPS)
    assert len(set(plain.rates)) > 2, "the schedule changes something"
    check(held, losses, plain)


@pytest.mark.parametrize("clip", [0.5, 20.0, 1e6])
def test_the_model_is_cut_elsewhere(tmp_path: Path, clip: float) -> None:
    program = changed(tmp_path, SCRIPTED, f"CLIP_NORM = {clip}")
    losses: list[float] = []
    held: Held = {}
    for number, cut in enumerate([(5,), (2, 3), (1, 2, 2)]):
        bundle = bundle_of(tmp_path, cut, (0,) * len(cut), 1, 4)
        if held:
            stand(held, len(losses))
            held = {worker: convert(chunks.values(), bundle, 0) for worker, chunks in held.items()}
        else:
            held = built(bundle, program)
        losses += run(bundle, held, 3 * number, 3 * number + 3)
    check(held, losses, train_plainly(program, 4, len(losses)))


def test_a_step_that_is_left_out_moves_nothing(tmp_path: Path) -> None:
    poisoned = """
_batches = batches
def batches(seed):
    for number, (points, target) in enumerate(_batches(seed)):
        yield points * (float("nan") if number in (9, 17) else 1.0), target
"""
    program = changed(tmp_path, SCRIPTED, poisoned)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    run(bundle, held, 0, STEPS)
    plain = train_plainly(program, 4, STEPS)
    assert plain.rates[2] == plain.rates[3] and plain.rates[4] == plain.rates[5]
    for chunks in held.values():
        for chunk in chunks.values():
            assert chunk.stepper.progress.skipped == 2
            for name, tensor in chunk.module.state_dict().items():
                torch.testing.assert_close(tensor, plain.model[name], rtol=1e-11, atol=1e-12)


def test_going_back_a_step(tmp_path: Path) -> None:
    """As survivors do: the same step again, and nothing of it has moved twice."""
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, SCRIPTED)
    losses = run(bundle, held, 0, 4)
    losses[3:] = run_again(bundle, held)
    check(held, losses, train_plainly(SCRIPTED, 4, STEPS))


def run_again(bundle: Bundle, held: Held) -> list[float]:
    """From step 3 on, which all have made."""
    for chunk in every_chunk(held):
        chunk.stepper.rollback()
        chunk.stand(3, None)
    return run(bundle, held, 3, STEPS)


def every_chunk(held: Held) -> list[Chunk]:
    return [chunk for chunks in held.values() for chunk in chunks.values()]


HOOKED = """
schedule = None
_optimizer = optimizer
def optimizer(named_parameters):
    made = _optimizer(named_parameters)
    rate = torch.optim.lr_scheduler.ExponentialLR(made, 0.7)
    made.register_step_post_hook(lambda *_: rate.step())
    return made
"""


def test_a_schedule_in_a_hook_of_the_optimizer(tmp_path: Path) -> None:
    """The obvious way where there is no other: found, undone and handed over like any."""
    program = changed(tmp_path, SCRIPTED, HOOKED)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    losses = run(bundle, held, 0, 4)
    losses[3:] = run_again(bundle, held)
    check(held, losses, train_plainly(program, 4, STEPS))


COUNTED = """
schedule = None
_optimizer = optimizer
class Slower:
    def __init__(self, made):
        self.made, self.steps, self.seen = made, 0, []
    def __call__(self, *_):
        self.steps += 1
        self.seen.append(self.steps)
        for group in self.made.param_groups:
            group["lr"] = 3e-2 / len(self.seen)
def optimizer(named_parameters):
    made, steps, seen = _optimizer(named_parameters), 0, {}
    def slower(*_):
        nonlocal steps
        steps += 1
        seen[steps] = None
        for group in made.param_groups:
            group["weight_decay"] = 0.1 / len(seen)
    made.register_step_post_hook(slower)
    made.register_step_post_hook(Slower(made))
    return made
"""


def test_what_hooks_of_the_optimizer_count(tmp_path: Path) -> None:
    program = changed(tmp_path, SCRIPTED, COUNTED)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    losses = run(bundle, held, 0, 4)
    assert {chunk.stepper.progress.redone for chunk in every_chunk(held)} == {1}
    losses[3:] = run_again(bundle, held)
    check(held, losses, train_plainly(program, 4, STEPS))


def test_a_layer_takes_everything_along(tmp_path: Path) -> None:
    """State as it is sent and as it is written, into a layer built anew."""
    from recycle_runtime.program.loading import load_program
    from recycle_runtime.state.image import packed, read_image
    from recycle_runtime.state.layer_state import LayerState
    from recycle_runtime.state.tree import put_together, take_apart

    bundle = bundle_of(tmp_path, (5,), (0,), 1, 4)
    held = built(bundle, SCRIPTED)
    run(bundle, held, 0, 3)
    program = load_program(SCRIPTED)
    (chunk,) = every_chunk(held)
    for layer, (name, module) in zip(chunk.layers, build_layers(program, 1), strict=True):
        tree, tensors = take_apart(layer.state())
        image = read_image(packed("state", [LayerState("layer", {}, tree, tensors)]))
        assert image is not None
        for state in (image.state("layer"), put_together(tree, tensors)):
            other = Layer(program, layer.number, name, module)
            other.load(state)
            assert _numbers(other.state()) == _numbers(layer.state())


def _numbers(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return value


def test_peers_have_the_same_digest(tmp_path: Path) -> None:
    """Bit by bit, and of everything that moves; one number in one of them shows, and where it is."""
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, SCRIPTED)
    run(bundle, held, 0, 5)
    for stage in range(2):
        one, other = (tensor_digest(held[pipeline, stage][stage].layers) for pipeline in range(2))
        assert one == other
    names = set(tensor_digest(held[0, 1][1].layers))
    assert {
        "blocks.3.linear.weight",
        "blocks.3.linear.weight exp_avg_sq",
        "blocks.3: param_groups 1 lr",
        "blocks.3: schedule last_epoch",
        "blocks.3: moves_with_steps/0 module.linear.weight",
        "blocks.3: moves_with_steps/0 n_averaged",
    } <= names
    (layer, *_) = held[0, 1][1].layers
    before = tensor_digest([layer])
    assert layer.stepped is not None
    layer.stepped.optimizer.param_groups[0]["lr"] += 1e-12
    with torch.no_grad():
        layer.parameters[2].view(-1)[3] += 1e-15
    after = tensor_digest([layer])
    assert {name for name in before if before[name] != after[name]} == {
        "blocks.3: param_groups 0 lr",
        layer.parameter_names[2],
    }


def test_clipping_by_value(tmp_path: Path) -> None:
    """Before the norm is taken, as in a plain loop that does both."""
    program = changed(tmp_path, SCRIPTED, "CLIP_VALUE = 0.3\nCLIP_NORM = 1.0")
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    losses = run(bundle, held, 0, STEPS)
    check(held, losses, train_plainly(program, 4, STEPS))
    assert losses != pytest.approx(train_plainly(SCRIPTED, 4, STEPS).losses, rel=1e-3)


def test_gradients_that_are_not_finite_are_seen_although_they_are_clipped_by_value() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    gradients = FlatGradients([weight])
    for value, expected in ((5.0, [0.5, 0.5, -0.5]), (math.inf, None), (math.nan, None)):
        assert weight.grad is not None
        weight.grad.copy_(torch.tensor([value, 5.0, -5.0]))
        gradients.clamp(0.5)
        assert math.isfinite(float(gradients.sum_of_squares())) is (expected is not None)
        assert expected is None or weight.grad.tolist() == expected


def test_layers_of_which_nothing_is_chosen(tmp_path: Path) -> None:
    """An optimizer for some parameters: other layers stay as they are, and still count for the norm."""
    change = """
def optimizer(named_parameters):
    return torch.optim.AdamW([value for name, value in named_parameters if "blocks" in name], lr=3e-2)
def moves_with_steps(module, optimizer): return []
"""
    program = changed(tmp_path, SCRIPTED, change)
    bundle = bundle_of(tmp_path, (3, 2), (0, 1), 2, 2)
    held = built(bundle, program)
    check(held, run(bundle, held, 0, 4), train_plainly(program, 4, 4))


REFUSED = {
    "def schedule(o): return torch.optim.lr_scheduler.ReduceLROnPlateau(o)": "needs a number in every step",
    "def schedule(o): return 0.1": "schedule must return a scheduler of torch.optim.lr_scheduler",
    "def schedule(): pass": "cannot be called as schedule",
    "def moves_with_steps(m, o): return [object()]": "must have state_dict, load_state_dict and step",
    "CLIP_VALUE = -1": "CLIP_VALUE must be a number over 0",
    """
class Strange:
    def step(self): pass
    def state_dict(self): return {"lock": {1, 2}}
    def load_state_dict(self, state): pass
def moves_with_steps(m, o): return Strange()
""": "Strange cannot be handed to another worker: its state has a value of type set under lock",
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_work_says_so_at_start(tmp_path: Path, change: str) -> None:
    path = changed(tmp_path, SCRIPTED, change)
    with pytest.raises(ProgramError, match=REFUSED[change]):
        built(bundle_of(tmp_path, (3, 2), (0, 1), 2, 2), path)
