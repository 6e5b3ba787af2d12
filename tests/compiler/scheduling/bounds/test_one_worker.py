"""F that wait for memory: no later than in the best of all orders, and as late where they are tight."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.bounds.one_worker import OneWorker, forward_starts, starts_after_backward
from tests.support.jobs import SLOT, routed_problem, unit_job


def alone(
    share: int, times: tuple[int, int, int], trip: int, capacity: int, activation: int, kept: int
) -> OneWorker:
    """A worker that claims no idle time before its first backward, so that only rounds count."""
    return OneWorker(share, *times, trip, 0, capacity, activation, kept)


def test_one_worker_for_all_micro_batches_waits_round_after_round() -> None:
    """Fourteen stages, two of three workers of stage 2 failed: 42 micro-batches on one that holds 14.

    A round trip takes 22 F and backwards and 22 transfers, so a round takes 47, and F number 28 comes after
    27 F, 14 backwards and W, and 31 idle slots: at 86. One round later F number 42 starts, at 133. Its
    backward ends at 179; before all that lie 4 slots on the way down, after it 5 on the way up, and 2 for the
    optimizer.
    """
    job = replace(unit_job(14, 3, 14, capacity=14, optimizer=2), transfer=(SLOT,) * 13)
    bound = lower_bound(routed_problem(job, failure_set([(1, 2), (2, 2)])))
    assert (bound.period, bound.reason) == ((133 + 46 + 4 + 5 + 2) * SLOT, "rounds of stage 2")


def soonest_last_start(worker: OneWorker, from_backward: bool) -> int:
    """The least time to the start of the last F, of all orders of ops on one worker.

    It counts from the first op or from the first backward, before which the worker may wait for as long as
    anything is on its way.
    """
    best = 10**9
    kept, rest = worker.kept, worker.activation - worker.kept

    def go_on(now: int, held: int, left: int, flying: tuple[int, ...], waiting: int, first: int) -> None:
        nonlocal best
        if left == 0 or (first >= 0 and now - first >= best):
            return
        if held + worker.activation <= worker.capacity:
            if left == 1 and first >= 0:
                best = min(best, now - first)
            ends = now + worker.forward
            go_on(ends, held + worker.activation, left - 1, (*flying, ends + worker.trip), waiting, first)
        for arrives in sorted(set(flying)):
            others = list(flying)
            others.remove(arrives)
            soonest = max(now, arrives)
            for start in (soonest,) if first >= 0 else range(soonest, max(soonest, *flying) + 1):
                begun = start if first < 0 else first
                go_on(start + worker.backward, held - rest, left, tuple(others), waiting + 1, begun)
        if waiting > 0:
            go_on(now + worker.weight, held - kept, left, flying, waiting - 1, first)

    go_on(0, 0, worker.share, (), 0, -1 if from_backward else 0)
    return best


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 4),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 6),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_last_f_starts_no_sooner(
    share: int, times: tuple[int, int, int], trip: int, room: int, activation: int, kept: int
) -> None:
    capacity = activation + room
    if capacity // activation >= share:
        return
    worker = alone(share, times, trip, capacity, activation, min(kept, activation))
    assert forward_starts(worker)[-1] <= soonest_last_start(worker, from_backward=False)
    after = starts_after_backward(worker, np.array([share], dtype=np.int64))[0]
    assert after <= soonest_last_start(worker, from_backward=True)


def test_the_last_f_where_all_is_tight() -> None:
    """Six F, room for two: three more F, four backwards and four W before the last one.

    With ten slots between F and backward, the fifth comes two rounds of 13 after the first.
    """
    worker = alone(6, (1, 1, 1), 2, 2, 1, 1)
    assert starts_after_backward(worker, np.array([6], dtype=np.int64)) == 11
    assert soonest_last_start(worker, from_backward=True) == 11
    far = alone(5, (1, 1, 1), 10, 2, 1, 1)
    assert forward_starts(far)[-1] == soonest_last_start(far, from_backward=False) == 26
