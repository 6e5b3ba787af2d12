"""Shares of the time: counted by hand, and adding up for random plans."""

from hypothesis import given, settings

from recycle_compiler.analysis.explain.idle import CAUSES, StageTime, idle_times
from recycle_compiler.analysis.explain.timeline import timeline_of
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from tests.compiler.analysis.explain.hand_made import (
    FIVE_TO_THREE_AND_TWO,
    ONE_PIPELINE,
    TWO_WINDOWS,
    hand_made,
)
from tests.support.jobs import NONE, SLOT, figure3, small_targets


def slots(time: StageTime) -> dict[str, int]:
    """Busy, idle and slack time, in slots of all workers together."""
    named = {"busy": time.busy, **dict(zip(CAUSES, time.idle, strict=True)), "slack": time.slack}
    return {cause: ticks // SLOT for cause, ticks in named.items() if ticks}


def test_ramp_up_memory_transfer_and_tail() -> None:
    first, second = idle_times(timeline_of(hand_made(ONE_PIPELINE)))
    # From 2 to 5 it waits for its first I; from 6 to 7 F0.2 has no room while stage 1 runs I0.1, which is on
    # its way until 8; from 12 to 16 only the last I is left.
    assert slots(first) == {"busy": 10, "ramp-up": 3, "memory": 1, "transfer": 1, "tail": 4}
    assert (first.full_ramp_up, first.window) == (3 * SLOT, 19 * SLOT)
    # From 8 to 12 stage 0 has not run F0.2, which then travels.
    assert slots(second) == {"busy": 10, "dependency": 4, "transfer": 1, "slack": 4}
    assert second.window == 15 * SLOT


def test_waiting_for_peers_is_imbalance(tiny: Schedule) -> None:
    first, second = idle_times(timeline_of(tiny))
    assert slots(first) == {"busy": 14, "ramp-up": 4, "tail": 4, "imbalance": 2, "slack": 2}
    assert (first.workers, first.full_ramp_up) == (2, 0)
    assert slots(second) == {"busy": 13}


def test_waiting_of_a_worker_with_less_work_is_imbalance_as_far_as_it_has_less() -> None:
    _, second = idle_times(timeline_of(hand_made(FIVE_TO_THREE_AND_TWO)))
    # 1:1 waits for five slots between its micro-batches and has three slots less to do than 0:1.
    assert slots(second) == {"busy": 17, "ramp-up": 2, "imbalance": 3, "dependency": 2, "slack": 18}


def test_a_stage_that_waits_while_a_peer_works() -> None:
    first, second = idle_times(timeline_of(hand_made(TWO_WINDOWS)))
    assert slots(first) == {"busy": 30, "tail": 2, "imbalance": 2}
    assert slots(second) == {"busy": 32, "dependency": 1, "imbalance": 1}


def test_running_example_without_a_memory_limit() -> None:
    times = idle_times(timeline_of(replay(plan_failed(figure3(None), failure_set([(1, 2)])))))
    assert slots(times[2]) == {"busy": 60}
    assert [time.workers for time in times] == [3, 3, 2, 3]


def test_1f1b_idles_before_and_after_its_backwards() -> None:
    """Nine of thirty slots on each worker: three stages of F and B each way, or the wait for the barrier."""
    times = idle_times(timeline_of(replay(plan_failed(figure3((4, 3, 2, 1), NONE), ()))))
    assert [slots(time) for time in times] == [
        {"busy": 63, "ramp-up": 18, "tail": 9},
        {"busy": 63, "ramp-up": 15, "tail": 12},
        {"busy": 63, "ramp-up": 12, "tail": 15},
        {"busy": 63, "ramp-up": 9, "tail": 18},
    ]


def test_workers_without_work_are_out_of_balance() -> None:
    """Without adaptive pipelining the live workers of a hit pipeline idle."""
    times = idle_times(timeline_of(replay(plan_failed(figure3(4, NONE), failure_set([(1, 2)])))))
    window = times[0].period - 3 * SLOT
    assert times[0].workers == 3
    assert times[0].idle[CAUSES.index("imbalance")] >= window // 2
    assert times[2].workers == 2


@settings(max_examples=40)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_every_tick_has_one_cause(target: Target) -> None:
    schedule = replay(plan_failed(target.job, target.failed, effort=Effort().quick()))
    job = target.job
    for time in idle_times(timeline_of(schedule)):
        of_stage = schedule.ops.chunk == time.stage
        busy = int(schedule.ops.duration[of_stage].sum())
        alive = job.pipelines - sum(worker.stage == time.stage for worker in target.failed)
        assert (time.busy, time.workers) == (busy, alive)
        assert min(time.idle) >= 0
        assert sum(time.idle) == alive * time.window - busy
        assert time.slack == alive * (schedule.claims.period - time.window) >= 0
        assert 0 <= time.full_ramp_up <= time.idle[CAUSES.index("ramp-up")]
        if job.techniques.stagger:
            first = int(schedule.start[of_stage].min())
            assert time.window == int(schedule.end[of_stage].max()) - first
