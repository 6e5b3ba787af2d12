"""The programs in examples/: the same model however it is cut, the same data for a seed, and they learn."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.loading import Program, load_program

PROGRAMS = Path(__file__).resolve().parents[3] / "examples" / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


STEPS = {"gpt": 8, "mlp": 16, "sequential": 16, "tensor_parallel": 48, "timed_layers": 16}


@pytest.fixture(scope="module", params=NAMES)
def program(request: pytest.FixtureRequest) -> Program:
    return load_program(PROGRAMS / f"{request.param}.py")


def chained(stages: list[torch.nn.Module], value: Any) -> Any:
    for stage in stages:
        value = stage(value)
    return value


def test_all_are_there() -> None:
    assert NAMES == ["gpt", "mlp", "sequential", "tensor_parallel", "timed_layers"]


def test_the_cut_does_not_change_the_model(program: Program) -> None:
    data, _ = next(program.batches(0))
    whole = build_module(program, 0, 1, 0)
    parameters = dict(whole.named_parameters())
    expected = whole(data)
    for count in (2, 3, 4):
        stages = [build_module(program, stage, count, 0) for stage in range(count)]
        assert torch.equal(chained(stages, data), expected)
        named = {name: value for stage in stages for name, value in stage.named_parameters()}
        assert named.keys() == parameters.keys()
        assert all(torch.equal(value, parameters[name]) for name, value in named.items())


def test_a_seed_says_which_data(program: Program) -> None:
    def some(seed: int) -> list[Any]:
        return [(data.tolist(), target.tolist()) for data, target in islice(program.batches(seed), 3)]

    assert some(1) == some(1)
    assert some(1) != some(2)
    assert len({str(item) for item in some(1)}) == 3


def test_training_lowers_the_loss(program: Program) -> None:
    stages = [build_module(program, stage, 2, 0) for stage in range(2)]
    optimizers = [program.optimizer(list(stage.parameters())) for stage in stages]
    data = MicroBatches(program, 0, 2)
    losses: list[float] = []
    for step in range(STEPS[program.path.stem]):
        for index in range(2):
            value, target = data.item(step, index)
            loss = program.loss(chained(stages, value), target) / 2
            torch.autograd.backward(loss)
            losses.append(loss.item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


def test_types_are_as_promised() -> None:
    programs = {name: load_program(PROGRAMS / f"{name}.py") for name in NAMES}
    kinds = {
        name: {value.dtype for value in build_module(program, 0, 1, 0).parameters()}
        for name, program in programs.items()
    }
    short, long = {torch.float32}, {torch.float64}
    exact = dict.fromkeys(("mlp", "tensor_parallel", "timed_layers"), long)
    assert kinds == {"gpt": short, "sequential": short, **exact}
