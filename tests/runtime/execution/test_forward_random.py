"""Random draws of forwards from torch, Python and numpy depend on seed, step, micro-batch and layer alone."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.data.private_random import preserved
from recycle_runtime.execution.chunk import Chunk, build_chunks, build_module
from recycle_runtime.execution.forward_random import ForwardRandom
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.program.precision import Precision

PROGRAM = """
import random

import torch

try:
    import numpy
except ImportError:
    numpy = None


def drawn():
    return [random.random(), float(torch.rand(())), 0.0 if numpy is None else float(numpy.random.rand())]


class Draws(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(drawn(), dtype=torch.float64))

    def forward(self, value):
        return torch.cat([value, value.new_tensor(drawn())])


MODEL


def loss(output, target):
    return output.sum()


def batches(seed):
    while True:
        yield torch.zeros(1, dtype=torch.float64), torch.zeros(1)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
WAYS = {
    "layers": 'def layers():\n    return [(f"l{number}", Draws()) for number in range(4)]',
    "build_stage": "def build_stage(stage, stages):\n    return torch.nn.Sequential(Draws(), Draws())",
}
Drawn = dict[tuple[int, int], list[float]]


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with preserved():
        yield


@pytest.fixture(params=WAYS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "draws.py"
    path.write_text(PROGRAM.replace("MODEL", WAYS[request.param]), encoding="utf-8")
    return str(path)


def _chunk(program: str, bundle: str, seed: int) -> Chunk:
    return build_chunks(load_program(program), Bundle.read(bundle), 0, seed, torch.device("cpu"))[0]


def _forwards(chunk: Chunk, moments: list[tuple[int, int]]) -> Drawn:
    assert chunk.program.precision is Precision.AS_BUILT
    return {
        moment: chunk.forward([torch.zeros(0, dtype=torch.float64)], *moment).tolist() for moment in moments
    }


def test_a_forward_that_runs_again_draws_the_same(square: str, program: str) -> None:
    moments = [(step, index) for step in range(2) for index in range(3)]
    first = _forwards(_chunk(program, square, 7), moments)
    _unsettle()
    again = _forwards(_chunk(program, square, 7), moments[::-1])
    assert again == first
    assert _forwards(_chunk(program, square, 8), moments) != first
    # No two of them are alike, but for what a program without numpy gives in its place.
    numbers = [number for drawn in first.values() for number in drawn if number]
    assert len(set(numbers)) == len(numbers) >= 2 * 2 * len(moments)


def test_a_model_is_built_with_the_same_numbers(program: str) -> None:
    def built() -> list[Any]:
        _unsettle()
        loaded = load_program(program)
        modules = [build_module(loaded, chunk, 2, seed=3) for chunk in range(2)]
        return [weight.tolist() for module in modules for weight in module.parameters()]

    assert built() == built()


def test_a_watched_forward_is_known_to_draw_on_the_host_only_if_it_does() -> None:
    numbers = ForwardRandom(1, torch.device("cpu"))
    numbers.begin(0, 0)
    with numbers.watching():
        for layer in range(3):
            numbers.enter(layer)
    assert not numbers.draws_on_host
    with numbers.watching():
        numbers.enter(0)
        random.random()
        numbers.enter(1)
    assert numbers.draws_on_host


def _unsettle() -> None:
    """As in another process."""
    random.seed()
    torch.seed()
    pytest.importorskip("numpy").random.seed()
