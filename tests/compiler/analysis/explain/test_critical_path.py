"""The chain that fills the period, on schedules counted by hand and on plans of the running example."""

import pytest
from hypothesis import given, settings

from recycle_compiler.analysis.explain.critical_path import CriticalPath, PathStep, StepKind, critical_path
from recycle_compiler.analysis.explain.timeline import timeline_of
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.explain.hand_made import ONE_PIPELINE, TWO_WINDOWS, hand_made
from tests.support.jobs import ALL, DECOUPLED, NONE, SLOT, figure3, small_targets


def told(step: PathStep) -> str:
    """`0:1 F0.0..I0.1 5` or `transfer 1`, in slots."""
    what = step.kind.value
    if step.worker is not None:
        what = f"{step.worker} {step.first}..{step.last}" if step.ops > 1 else f"{step.worker} {step.first}"
    return f"{what} {step.ticks // SLOT}" + (" before" if step.iteration < 0 else "")


def fills(path: CriticalPath, period: int) -> bool:
    """One period without a hole."""
    ends = [path.steps[0].start, *(step.end for step in path.steps)]
    starts = [*(step.start for step in path.steps), path.steps[0].start + period]
    return starts == ends and all(step.ticks > 0 for step in path.steps)


def test_through_both_stages_and_the_network() -> None:
    path = critical_path(timeline_of(hand_made(ONE_PIPELINE)), 0)
    assert [told(step) for step in path.steps] == [
        "0:0 F0.0 1",
        "transfer 1",
        "0:1 F0.0..I0.1 5",
        "transfer 1",
        "0:0 I0.1..F0.2 4",
        "transfer 1",
        "0:1 F0.2..I0.2 2",
        "transfer 1",
        "0:0 I0.2..W0.2 2",
        "finish 1",
    ]
    assert (path.stage, path.closed, path.length) == (0, True, 19 * SLOT)
    assert (path.computed_on(0), path.computed_on(1)) == (7 * SLOT, 7 * SLOT)
    assert path.total(StepKind.TRANSFER) == 4 * SLOT


def test_a_busy_worker_is_its_own_path(tiny: Schedule) -> None:
    path = critical_path(timeline_of(tiny), 1)
    assert [told(step) for step in path.steps] == ["0:1 F0.0..W1.1 12", "finish 1"]


def test_only_a_window_as_long_as_the_period_has_a_path(tiny: Schedule) -> None:
    assert critical_path(timeline_of(tiny), 0).stage == 1


@pytest.mark.parametrize(
    ("bottleneck", "steps"),
    [
        (0, ["finish 5 before", "1:1 F1.0..I1.1 7", "1:0 I1.1..W1.1 2", "finish 3"]),
        (1, ["0:0 F0.1 3", "0:1 F0.1..W0.1 8", "finish 6"]),
    ],
)
def test_windows_that_hold_each_other_up(bottleneck: int, steps: list[str]) -> None:
    """Stage 0 waits for 1:1, which waits until the previous iteration of its stage is over; and the window of
    stage 1 opens in the middle of F0.1 on stage 0."""
    path = critical_path(timeline_of(hand_made(TWO_WINDOWS)), bottleneck)
    assert [told(step) for step in path.steps] == steps
    assert (path.stage, path.closed, path.length) == (bottleneck, False, 17 * SLOT)
    assert fills(path, 17 * SLOT)


def test_running_example_without_a_memory_limit() -> None:
    """Nine micro-batches of three slots on a worker of stage 2, then its step."""
    schedule = replay(plan_failed(figure3(None), failure_set([(1, 2)])))
    path = critical_path(timeline_of(schedule), 2)
    assert [(step.kind, step.stage, step.ops, step.ticks // SLOT) for step in path.steps] == [
        (StepKind.COMPUTE, 2, 27, 27),
        (StepKind.FINISH, 2, 0, 3),
    ]


@pytest.mark.parametrize(("techniques", "period"), [(ALL, 27), (NONE, 30)])
def test_running_example_without_failures(techniques: Techniques, period: int) -> None:
    """The way down to stage 3, its work without the last W, the way up: all on one pipeline."""
    schedule = replay(plan_failed(figure3((4, 3, 2, 1), techniques), ()))
    path = critical_path(timeline_of(schedule), 3)
    assert path.length == period * SLOT
    assert [step.stage for step in path.steps] == [0, 1, 2, 3, 2, 1, 0, 0]
    assert len({step.worker.pipeline for step in path.steps if step.worker is not None}) == 1
    assert path.computed_on(3) == (17 if techniques.decouple else 18) * SLOT
    assert path.total(StepKind.FINISH) == 3 * SLOT


def test_one_barrier_means_one_path_from_the_first_op() -> None:
    schedule = replay(plan_failed(figure3(4, DECOUPLED), failure_set([(1, 2)])))
    path = critical_path(timeline_of(schedule), 2)
    assert (path.steps[0].start, path.steps[-1].start) == (0, schedule.claims.makespan)
    assert path.length == schedule.claims.period


@settings(max_examples=40)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_the_path_fills_the_period(target: Target) -> None:
    schedule = replay(plan_failed(target.job, target.failed, effort=Effort().quick()))
    timeline = timeline_of(schedule)
    for bottleneck in range(target.job.stages):
        path = critical_path(timeline, bottleneck)
        assert fills(path, schedule.claims.period)
        assert path.total(StepKind.NOTHING) == 0
