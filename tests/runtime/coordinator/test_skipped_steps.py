"""The first numbers that are not finite, and how many steps may be left out."""

import math

import pytest

from recycle_runtime.coordinator.events import Note, Tell, TellSettled
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import NotFinite, Settled, StepSettled

GRID = [Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(3)]


def stage_of(worker: Worker) -> int:
    return worker[1]


def hear(steps: SkippedSteps, step: int, bad: dict[Worker, list[tuple[str, int]]]) -> list[str]:
    """The orders when all workers have said that a step was skipped."""
    told: list[str] = []
    for member in GRID:
        found = tuple(NotFinite(*each) for each in bad.get(member.worker, []))
        orders = steps.hear(member, Settled(step, math.nan, True, found), GRID, stage_of)
        told += [order.text for order in orders if isinstance(order, Tell)]
    return told


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            {
                (0, 1): [("forward", 4), ("forward", 3), ("backward", 3)],
                (1, 1): [("forward", 2), ("backward", 2)],
                (0, 2): [("loss", 2), ("loss", 3), ("backward", 2)],
                (0, 0): [("backward", 2)],
            },
            "the forward of micro-batch 2 on stage 1 (worker 1:1) is the first that is not finite",
        ),
        (
            {(0, 0): [("data", 3), ("forward", 3)], (0, 1): [("forward", 1)]},
            "the data of micro-batch 3 on stage 0 (worker 0:0) is the first that is not finite",
        ),
        (
            {(0, 1): [("backward", 5)], (1, 2): [("backward", 6)], (0, 0): [("backward", 1)]},
            "the backward of micro-batch 6 on stage 2 (worker 1:2) is the first that is not finite",
        ),
        (
            {(0, 1): [("router mixture", 2), ("forward", 2)], (1, 1): [("forward", 2)]},
            "the router of mixture for micro-batch 2 on stage 1 (worker 0:1) is the first that is not finite",
        ),
        ({}, "a gradient of a weight is not finite"),
    ],
)
def test_where_it_began(bad: dict[Worker, list[tuple[str, int]]], words: str) -> None:
    assert hear(SkippedSteps(), 7, bad) == [f"step 7 was skipped: {words}"]


def test_too_many_in_a_row() -> None:
    steps = SkippedSteps(3)
    for step in (0, 1):
        hear(steps, step, {})
    assert steps.has_made_none(2)
    good = Settled(2, 1.5, False)
    orders = steps.hear(GRID[0], good, GRID, stage_of)
    settled = StepSettled(2, 1.5, False)
    assert orders == [Note({"settled": settled}), TellSettled(settled)]
    assert steps.hear(GRID[0], good, GRID, stage_of) == []
    for step in (3, 4):
        hear(steps, step, {})
        # A step that is made again counts once.
        hear(steps, step, {})
    assert not steps.is_too_often and not steps.has_made_none(5)
    # The first to say so may not be the one that knows where it began.
    steps.hear(GRID[0], Settled(5, math.nan, True), GRID, stage_of)
    assert not steps.is_too_often
    hear(steps, 5, {(0, 1): [("forward", 3)]})
    assert steps.is_too_often
    assert "the forward of micro-batch 3 on stage 1 (worker 0:1)" in steps.words


def test_verdicts_that_are_said_again_in_another_order() -> None:
    """Of steps made while there was no coordinator: all workers tell of those that were skipped, and one of
    the others too, who may be heard last."""
    steps = SkippedSteps(3)
    for step in (1, 3, 5):
        hear(steps, step, {})
    assert not steps.is_too_often
    settled = [StepSettled(step, 1.0, False) for step in (0, 2, 4)]
    for each in settled:
        said = Settled(each.step, 1.0, False)
        assert steps.hear(GRID[0], said, GRID, stage_of) == [Note({"settled": each}), TellSettled(each)]
        assert steps.hear(GRID[0], said, GRID, stage_of) == []
    assert steps.in_a_row == 1
    hear(steps, 6, {})
    hear(steps, 7, {})
    assert steps.is_too_often


def test_one_that_died_is_not_waited_for() -> None:
    steps = SkippedSteps()
    found = (NotFinite("loss", 1),)
    steps.hear(GRID[2], Settled(0, math.nan, True, found), GRID, stage_of)
    orders = steps.hear(GRID[2], Settled(1, 1.0, False), GRID, stage_of)
    words = "the loss of micro-batch 1 on stage 2 (worker 0:2) is the first that is not finite"
    assert orders[0] == Tell(f"step 0 was skipped: {words}")
