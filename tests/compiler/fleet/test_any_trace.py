"""Claims that hold for every policy on any trace: GPU-hours, limits, spares."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.policy import NAMES
from recycle_compiler.fleet.report import FleetReport
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace
from tests.compiler.fleet.settings import COSTS, setting

HOURS = 12
MACHINES = 12
Fault = tuple[int, int, frozenset[int]]
"""Seconds at which it begins, how long it lasts, and the machines."""
FAULTS = st.lists(
    st.tuples(
        st.integers(0, HOURS * 3600),
        st.sampled_from([1, 10, 60, 900, 20_000, 90_000]),
        st.one_of(
            st.frozensets(st.integers(0, MACHINES + 2), min_size=1, max_size=4),
            st.just(frozenset(range(MACHINES + 3))),
        ),
    ),
    max_size=24,
)
SETTLED = 120.0
"""Seconds after a change in which processes start, states are copied, plans made and workers moved."""
NEVER_FAIL = {"fault-free", "zero-bubble"}


def fleet(faults: list[Fault], spares: int, gpus: int = 1) -> Fleet:
    """The same machines and faults, however many spare ones there are."""
    machines = MACHINES // gpus + spares
    names = tuple(f"m{number}" for number in range(machines))
    events = sorted(each for number in range(machines) for each in of_machine(faults, number))
    return Fleet(
        FleetTrace("made up", HOURS * 3600.0, names, tuple(FleetEvent(*each) for each in events)),
        lay_out(3, 4, 1, gpus),
    )


def of_machine(faults: list[Fault], number: int) -> Iterator[tuple[float, str, bool]]:
    """Down from the first open fault to the end of the last."""
    down: list[tuple[int, int]] = []
    for begin, length, machines in sorted(faults, key=lambda fault: fault[:2]):
        if number not in machines:
            continue
        if down and begin <= down[-1][1]:
            down[-1] = down[-1][0], max(down[-1][1], begin + length)
        else:
            down.append((begin, begin + length))
    for begin, end in down:
        if begin < HOURS * 3600:
            yield float(begin), f"m{number}", False
        if end < HOURS * 3600:
            yield float(end), f"m{number}", True


def report(there: Fleet, *names: str, warm: bool = False) -> FleetReport:
    between = there.mean_time_between_failures
    found = replace(setting(replace(COSTS, checkpoint_every=None)), failure_interval=between)
    return compare(Comparison(found, there, batch_of(found, 1), warm), names)


@settings(max_examples=8, deadline=None)
@given(FAULTS, st.sampled_from([0, 1, 3]), st.sampled_from([1, 2]), st.booleans())
@example([(3600, 90_000, frozenset(range(MACHINES + 3)))], 1, 1, False)
def test_every_gpu_hour_has_a_column_and_no_worker_does_more_than_it_can(
    faults: list[Fault], spares: int, gpus: int, warm: bool
) -> None:
    there = fleet(faults, spares, gpus)
    job, found = setting().job, report(there, *NAMES, warm=warm)
    work = sum(map(sum, (job.forward, job.backward_input, job.backward_weight)))
    of_a_worker = setting().second_ticks / (work * job.pipelines * job.microbatches)
    for outcome in found.outcomes:
        if outcome.average is None:
            continue
        assert sum(outcome.gpu_hours) == pytest.approx((MACHINES + gpus * there.spares) * HOURS, rel=1e-12)
        assert min(outcome.gpu_hours) >= -1e-9
        assert 0 <= outcome.effective_training_time <= 1 + 1e-12
        if outcome.name not in {*NEVER_FAIL, "ntp"}:
            # Of workers that the trace has as down, ntp trains on with the GPUs that they have left.
            for point in outcome.timeline:
                assert point.throughput <= of_a_worker * point.live * (1 + 1e-9)
        if outcome.name == "fault-scaled":
            up = sum(
                strength.workers * seconds
                for strength, seconds in zip(there.strengths, lengths(there), strict=True)
            )
            best = setting().rate(setting().one_f_one_b) / MACHINES * up
            assert outcome.iterations == pytest.approx(best, rel=1e-9)


def lengths(there: Fleet) -> Iterator[float]:
    ends = [*(strength.at for strength in there.strengths[1:]), there.trace.span]
    return (end - strength.at for strength, end in zip(there.strengths, ends, strict=True))


@settings(max_examples=12, deadline=None)
@given(FAULTS)
@example([(3600, 90_000, frozenset(range(MACHINES)))])
@example([(0, 1, frozenset(range(MACHINES + 3))), (26, 20_000, frozenset({0, 1, 3}))])
def test_more_spares_cost_no_more_than_the_changes_that_they_bring(faults: list[Fault]) -> None:
    """Ours and replicas do as much with more machines, but for the minutes after each change."""
    for name in ("ours", "torchft", "nvrx"):
        most = 0.0
        for spares in (0, 1, 3):
            there = fleet(faults, spares)
            (outcome,) = (one for one in report(there, name).outcomes if one.name == name)
            useful = outcome.gpu_hours.useful / MACHINES
            changes = 1 + sum(1 for _ in there.changes())
            assert useful >= most - changes * SETTLED / 3600
            most = max(most, useful)


@settings(max_examples=12, deadline=None)
@given(FAULTS, st.sampled_from([0, 2]))
@example([(3600, 10, frozenset({0, 4, 8})), (3630, 10, frozenset(range(MACHINES + 3)))], 2)
def test_ours_trains_whenever_there_is_a_worker_for_every_stage(faults: list[Fault], spares: int) -> None:
    """But for the time in which processes start."""
    there = fleet(faults, spares)
    ours = report(there, "ours").outcomes[0]
    stages = setting().job.stages
    allowed = sum(
        seconds * (MACHINES if one.workers < stages else MACHINES - one.workers) + MACHINES * COSTS.start_up
        for one, seconds in zip(there.strengths, lengths(there), strict=True)
    )
    spares_down = sum(
        seconds * (there.spares - one.spares)
        for one, seconds in zip(there.strengths, lengths(there), strict=True)
    )
    assert ours.gpu_hours.down <= (allowed + spares_down) / 3600 + 1e-9
