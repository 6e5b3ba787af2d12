"""Rounds through memory: never more than the best of all orders takes, and all of it where they are tight."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.round_bounds import OneWorker, Spans, last_start, spans_in_rounds
from tests.support.jobs import SLOT, routed_problem, unit_job


def alone(
    share: int, times: tuple[int, int, int], trip: int, capacity: int, activation: int, kept: int
) -> OneWorker:
    """A worker that claims no idle time at its ends, so that only rounds count."""
    forward, backward, weight = times
    plenty = share * sum(times)
    return OneWorker(share, forward, backward, weight, trip, 0, 0, plenty, plenty, capacity, activation, kept)


def best_spans(worker: OneWorker) -> Spans:
    """The least spans of all orders of ops on one worker, micro-batches in any order."""
    best = [10**9, 10**9]
    kept, rest = worker.kept, worker.activation - worker.kept

    def go_on(
        now: int, held: int, left: int, flying: tuple[int, ...], waiting: int, last_backward: int
    ) -> None:
        if now >= best[0] and max(now, last_backward) >= best[1]:
            return
        if left == 0 and not flying:
            best[1] = min(best[1], last_backward)
        if left == 0 and not flying and waiting == 0:
            best[0] = min(best[0], now)
            return
        if left > 0 and held + worker.activation <= worker.capacity:
            ends = now + worker.forward
            go_on(ends, held + worker.activation, left - 1, (*flying, ends + worker.trip), waiting, 0)
        for arrives in sorted(set(flying)):
            ends = max(now, arrives) + worker.backward
            others = list(flying)
            others.remove(arrives)
            go_on(ends, held - rest, left, tuple(others), waiting + 1, ends)
        if waiting > 0:
            go_on(now + worker.weight, held - kept, left, flying, waiting - 1, last_backward)

    go_on(0, 0, worker.share, (), 0, 0)
    return Spans(*best)


@given(
    st.integers(1, 4),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(0, 4),
)
@settings(max_examples=150, deadline=None)
def test_no_order_is_shorter(
    share: int, times: tuple[int, int, int], trip: int, more: int, activation: int, kept: int
) -> None:
    worker = alone(share, times, trip, activation + more, activation, min(kept, activation))
    proven, found = spans_in_rounds(worker), best_spans(worker)
    assert proven.whole <= found.whole
    assert proven.to_last_backward <= found.to_last_backward


def test_rounds_that_wait_for_a_round_trip() -> None:
    """Two activations, ten slots between F and backward, six micro-batches.

    Two rounds of 13 bring the fifth F; after it come ten slots, then two backwards and two W. The last
    backward is that of the sixth F, one slot later.
    """
    worker = alone(6, (1, 1, 1), 10, 2, 1, 1)
    assert spans_in_rounds(worker) == Spans(2 * 13 + 1 + 10 + 2 + 2, 2 * 13 + 2 + 10 + 1)


def test_rounds_that_leave_nothing_open() -> None:
    """One activation at a time, or one and what two W keep."""
    whole = alone(3, (1, 1, 1), 10, 1, 1, 1)
    assert spans_in_rounds(whole) == best_spans(whole) == Spans(3 * 13, 3 * 13 - 1)
    part = alone(3, (1, 1, 1), 10, 4, 2, 1)
    assert spans_in_rounds(part) == best_spans(part)


def test_memory_that_holds_everything_has_no_rounds() -> None:
    assert spans_in_rounds(alone(4, (1, 1, 1), 10, 4, 1, 1)) == Spans(0, 0)


def test_one_worker_for_all_micro_batches_waits_round_after_round() -> None:
    """Fourteen stages, two of three workers of stage 2 failed: 42 micro-batches on one that holds 14.

    A round trip takes 22 F and backwards and 22 transfers, so a round takes 47, and F number 28 comes after
    27 F, 14 backwards and W, and 31 idle slots: at 86. One round later F number 42 starts, at 133. Its
    backward ends at 179; before all that lie 4 slots on the way down, after it 5 on the way up, and 2 for the
    optimizer.
    """
    job = replace(unit_job(14, 3, 14, capacity=14, optimizer=2), transfer=(SLOT,) * 13)
    bound = lower_bound(routed_problem(job, failure_set([(1, 2), (2, 2)])))
    assert (bound.period, bound.reason) == ((133 + 46 + 4 + 5 + 2) * SLOT, "tail of stage 2 through stage 0")


def soonest_last_start(worker: OneWorker) -> int:
    """The least time from the first backward to the start of the last F, of all orders of ops on one worker.

    The worker may wait before that backward, for as long as anything is on its way.
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

    go_on(0, 0, worker.share, (), 0, -1)
    return best


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 5),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    st.integers(0, 6),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_the_last_f_starts_no_sooner_after_the_first_backward(
    share: int, times: tuple[int, int, int], trip: int, room: int, activation: int, kept: int
) -> None:
    capacity = activation + room
    if capacity // activation >= share:
        return
    worker = alone(share, times, trip, capacity, activation, min(kept, activation))
    assert last_start(worker) <= soonest_last_start(worker)


def test_the_last_f_where_all_is_tight() -> None:
    """Six F, room for two: three more F, four backwards and four W before the last one."""
    worker = alone(6, (1, 1, 1), 2, 2, 1, 1)
    assert last_start(worker) == soonest_last_start(worker) == 11
