"""When a barrier of a plan is more than the sum of the norm, which all workers wait for anyway."""

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
