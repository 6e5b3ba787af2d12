"""Steps of a worker: when a barrier is needed, and which steps never were."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recycle_runtime.execution.optimizer import StepOptions, Stepper
from recycle_runtime.execution.steps import WorkerSteps
from recycle_runtime.transport.interface import Grid


def steps_of(options: StepOptions, *, has_peers: bool) -> WorkerSteps:
    parameter = torch.zeros(2, requires_grad=True)
    stepper = Stepper(torch.optim.SGD([parameter], lr=0.1), [parameter], options)
    chunk: Any = SimpleNamespace(stepper=stepper)
    chunk.of_ranks = (chunk,)
    transport: Any = None
    return WorkerSteps({0: chunk}, transport, {0: True}, has_peers=has_peers)


@pytest.mark.parametrize(
    ("options", "has_peers", "meets_all"),
    [
        (StepOptions(staggered=False), False, True),
        (StepOptions(staggered=False), True, False),
        (StepOptions(staggered=True), False, False),
        (StepOptions(staggered=False, validate=False), False, False),
    ],
)
def test_a_barrier_is_left_out_where_all_wait_for_the_norm_and_for_nothing_else(
    options: StepOptions, has_peers: bool, meets_all: bool
) -> None:
    assert steps_of(options, has_peers=has_peers).meets_all is meets_all


def test_peers_are_workers_of_one_stage_and_of_tied_chunks() -> None:
    assert not Grid([(0, 0), (0, 1)], 1, 1).has_peers
    assert not Grid([(0, 0), (1, 1)], 2, 2, (0, 1, 0)).has_peers
    assert Grid([(0, 0), (0, 1), (1, 1)], 1, 2).has_peers
    assert Grid([(0, 0), (0, 1)], 1, 1, (0, 1), tied_chunks=(0, 1)).has_peers


class CutOff:
    """A transport as NCCL's: sums give what they have, and which were cut off is known when they are over."""

    def __init__(self) -> None:
        self.broken_sums: frozenset[int] = frozenset()

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> None:
        del chunk, tensor

    def start_sum(self, tensor: torch.Tensor) -> None:
        del tensor


def two_chunks(options: StepOptions) -> tuple[WorkerSteps, CutOff, dict[int, Any]]:
    chunks: dict[int, Any] = {}
    for number in range(2):
        parameter = torch.zeros(2, requires_grad=True)
        stepper = Stepper(torch.optim.SGD([parameter], lr=1.0), [parameter], options)
        chunks[number] = SimpleNamespace(
            stepper=stepper,
            parameter=parameter,
            is_whole=True,
            settled=lambda: None,
            step_counts=[],
        )
        chunks[number].of_ranks = (chunks[number],)
    transport: Any = CutOff()
    return WorkerSteps(chunks, transport, {0: True, 1: True}), transport, chunks


def make_step(steps: WorkerSteps, chunks: dict[int, Any], *, validates: bool = True) -> None:
    for number, chunk in chunks.items():
        chunk.parameter.grad.add_(1.0)
        steps.reduce(number)
    for number in chunks:
        steps.step(number)
    if validates:
        steps.validate()


@pytest.mark.parametrize("validate", [True, False])
def test_a_step_with_a_sum_that_was_cut_off_is_taken_back(validate: bool) -> None:
    steps, transport, chunks = two_chunks(StepOptions(validate=validate))
    for _ in range(3):
        make_step(steps, chunks)
    transport.broken_sums = frozenset({1})
    steps.take_back_broken()
    assert [chunk.stepper.progress.steps for chunk in chunks.values()] == [3, 2]
    assert [chunk.parameter.tolist() for chunk in chunks.values()] == [[-3.0] * 2, [-2.0] * 2]
    assert chunks[1].stepper.unsettled is None
    steps.take_back_broken()
    assert chunks[1].stepper.progress.steps == 2, "a step is taken back once"


def test_a_sum_that_was_cut_off_before_the_step_leaves_the_last_one() -> None:
    steps, transport, chunks = two_chunks(StepOptions())
    make_step(steps, chunks)
    for number, chunk in chunks.items():
        chunk.parameter.grad.add_(1.0)
        steps.reduce(number)
    transport.broken_sums = frozenset({0, 1})
    steps.take_back_broken()
    assert [chunk.stepper.progress.steps for chunk in chunks.values()] == [1, 1]


def test_without_undo_such_a_chunk_is_of_no_use() -> None:
    steps, transport, chunks = two_chunks(StepOptions(validate=False, recoverable=False))
    make_step(steps, chunks)
    transport.broken_sums = frozenset({0})
    steps.take_back_broken()
    assert [chunk.is_whole for chunk in chunks.values()] == [False, True]
