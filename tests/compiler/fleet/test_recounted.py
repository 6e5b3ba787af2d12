"""Reports counted once more, by plain code that shares nothing with the product: second by second, by sums
over curves, and by a sweep."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import exp, log

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.policy import NAMES
from recycle_compiler.fleet.report import USES, FleetReport, report_document, report_table
from recycle_compiler.fleet.setting import FleetSetting, best_interval
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace
from tests.compiler.fleet.settings import setting
from tests.compiler.fleet.test_any_trace import FAULTS, HOURS, MACHINES, Fault, fleet
from tests.compiler.fleet.test_page import data_of

SECONDS = 3 * 3600
STAGES, PIPELINES = 4, 3
WORKERS = STAGES * PIPELINES
SAMPLES = 6
LOSSES = st.lists(st.tuples(st.integers(1, SECONDS - 1), st.integers(0, WORKERS - 1)), max_size=WORKERS)
"""Second of each failure, and which machine it is, for good."""
EVERY, SAVE, AGAIN = 100, 10, 1 + 30 + 10
"""Of the setting: seconds between two saves and of one; of detection, a restart and reading a checkpoint."""
PAUSE = 20
"""Seconds that ours does not train for after a change at most: detection, regrouping, half an iteration."""


def report_of(there: Fleet, *names: str, given_setting: FleetSetting | None = None) -> FleetReport:
    known = given_setting or setting()
    return compare(Comparison(known, there, batch_of(known, SAMPLES), price=2.5), names)


def lasting(losses: list[tuple[int, int]]) -> dict[int, set[int]]:
    """Machines that fail in each second, each of them once."""
    found: dict[int, set[int]] = {}
    seen: set[int] = set()
    for second, machine in sorted(losses):
        if machine not in seen:
            found.setdefault(second, set()).add(machine)
        seen.add(machine)
    return found


def without_returns(losses: dict[int, set[int]]) -> Fleet:
    events = [
        FleetEvent(float(at), f"m{one}", False) for at, every in losses.items() for one in sorted(every)
    ]
    names = tuple(f"m{number}" for number in range(WORKERS))
    return Fleet(FleetTrace("made up", float(SECONDS), names, tuple(events)), lay_out(PIPELINES, STAGES, 1))


class Recounted:
    """A job of whole pipelines that restarts from checkpoints, second by second."""

    def __init__(self, losses: dict[int, set[int]]) -> None:
        self.states: list[str] = []
        self.live: list[int] = []
        self.pipelines: list[int] = []
        # Places are filled pipeline by pipeline, as machines are numbered.
        self._stage_of = {number: number % STAGES for number in range(WORKERS)}
        up, pipelines, paused_until = set(range(WORKERS)), PIPELINES, 0
        for second in range(SECONDS):
            failed = losses.get(second, set())
            up -= failed
            if failed & self._stage_of.keys():
                self._undo((EVERY + SAVE) // 2)
                pipelines = len(up) // STAGES
                self._place(up, pipelines)
                paused_until = max(paused_until, second + AGAIN) if pipelines else paused_until
            self.live.append(len(up))
            self.pipelines.append(pipelines)
            self.states.append("paused" if second < paused_until else "training" if pipelines else "waiting")

    def _place(self, up: set[int], pipelines: int) -> None:
        """Those with a stage keep it, as far as it needs so many; the rest fill what is open."""
        for stage in range(STAGES):
            there = sorted(one for one, own in self._stage_of.items() if own == stage and one in up)
            for one in [*there[pipelines:], *(self._stage_of.keys() - up)]:
                self._stage_of.pop(one, None)
        missing = [
            stage
            for stage in range(STAGES)
            for _ in range(pipelines - sum(own == stage for own in self._stage_of.values()))
        ]
        self._stage_of |= dict(zip(sorted(up - self._stage_of.keys()), missing, strict=False))

    def _undo(self, seconds: int) -> None:
        """The last work is done again, but none from before the last restart."""
        for at in range(len(self.states) - 1, -1, -1):
            if not seconds or self.states[at] == "paused":
                return
            if self.states[at] == "training":
                self.states[at] = "redone"
                seconds -= 1

    def iterations(self, seconds_each: float) -> float:
        """Those that are kept, if all pipelines take so long for one."""
        kept = zip(self.states, self.pipelines, strict=True)
        part = EVERY / (EVERY + SAVE) / PIPELINES / seconds_each
        return sum(pipelines * part for state, pipelines in kept if state == "training")

    def columns(self) -> dict[str, float]:
        """GPU-hours by use."""
        found = dict.fromkeys(USES, 0.0)
        for state, live, pipelines in zip(self.states, self.live, self.pipelines, strict=True):
            found["down"] += WORKERS - live
            if state == "paused":
                found["reconfiguring"] += live
            elif state == "waiting":
                found["down"] += live
            else:
                saved = live * SAVE / (EVERY + SAVE)
                useful = STAGES * pipelines * EVERY / (EVERY + SAVE)
                found["saving"] += saved
                found["useful" if state == "training" else "redone"] += useful
                found["slowed"] += live - saved - useful
        return {name: seconds / 3600 for name, seconds in found.items()}


@settings(max_examples=40, deadline=None)
@given(LOSSES)
@example([(100, 0), (130, 1), (131, 2), (9000, 3)])
@example([(500, number) for number in range(WORKERS)])
def test_restarts_second_by_second(losses: list[tuple[int, int]]) -> None:
    first = lasting(losses)
    (found,) = report_of(without_returns(first), "restart").outcomes
    again, known = Recounted(first), setting()
    assert found.iterations == pytest.approx(again.iterations(known.seconds(known.one_f_one_b)), rel=1e-9)
    assert found.gpu_hours._asdict() == pytest.approx(again.columns(), abs=1e-9)


@settings(max_examples=10, deadline=None)
@given(FAULTS, st.sampled_from([0, 2]))
def test_curves_add_up_to_what_is_done(faults: list[Fault], spares: int) -> None:
    found = report_of(fleet(faults, spares), *NAMES)
    for outcome in found.outcomes:
        if outcome.average is None:
            continue
        points = outcome.timeline
        area = sum((later.hours - here.hours) * here.throughput for here, later in pairwise(points))
        assert points[0].hours == 0 and points[-1].hours == found.hours
        assert area * 3600 == pytest.approx(outcome.iterations * SAMPLES, rel=1e-9, abs=1e-9)
        assert outcome.average * found.hours == pytest.approx(area, rel=1e-9, abs=1e-9)
        assert outcome.still <= found.hours * (1 + 1e-12)


@settings(max_examples=5, deadline=None)
@given(FAULTS, st.sampled_from([0, 2]))
def test_table_page_and_json_say_the_same(faults: list[Fault], spares: int) -> None:
    found = report_of(fleet(faults, spares), "ours", "restart", "torchft", "fault-free")
    document = json.loads(report_document(found))
    in_table = {row[0]: [float(cell.replace(",", "")) for cell in row[1:]] for row in rows_of_uses(found)}
    paid = document["gpu_hours_paid"]
    assert paid == pytest.approx((MACHINES + found.spare_gpus) * HOURS, rel=1e-8)
    assert document["cost"] == pytest.approx(2.5 * paid, rel=1e-8)
    for drawn in data_of(page(found))["policies"]:
        said = document["policies"][drawn["name"]]
        columns = list(said["gpu_hours"].values())
        assert sum(columns) == pytest.approx(paid, rel=1e-8)
        assert drawn["uses"] == pytest.approx(columns, abs=0.001)
        assert in_table[drawn["name"]] == pytest.approx(columns, abs=0.0501)
        assert drawn["effective"] == pytest.approx(said["effective_training_time"], rel=1e-6)
        if said["average"]:
            million = document["cost"] * 1e6 / (said["average"] * document["hours"] * 3600)
            assert said["cost_per_million"] == pytest.approx(million, rel=1e-6)
            assert drawn["cost"] == pytest.approx(million, rel=1e-6)


def rows_of_uses(found: FleetReport) -> Iterator[list[str]]:
    """Cells of the table of GPU-hours by use."""
    lines = report_table(found).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("GPU-hours"))
    yield from (line.split() for line in lines[first + 1 : first + 1 + len(found.outcomes)])


@settings(max_examples=20, deadline=None)
@given(FAULTS)
@example([(3600, 90_000, frozenset(range(MACHINES)))])
def test_more_hot_spares_lose_no_more_than_the_pauses_of_failures(faults: list[Fault]) -> None:
    """A spare with all state takes over within the pause of the failure: more of them cost pauses alone, of
    the machines that fail in a place that they took, and the start-up of those that come back."""
    hot = replace(setting(), spares_have_state=True)
    most = 0.0
    for spares in (0, 1, 3):
        there = fleet(faults, spares)
        ours = report_of(there, "ours", given_setting=hot).outcomes[0]
        changes = 1 + sum(1 for _ in there.changes())
        useful = ours.gpu_hours.useful * 3600 / MACHINES
        assert useful >= most - changes * (PAUSE + hot.costs.start_up + hot.from_checkpoint)
        most = max(most, useful)


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 1000), st.floats(1, 6), st.floats(0, 600))
def test_no_interval_of_a_sweep_is_better_than_that_of_young_and_daly(
    save: float, exponent: float, restart: float
) -> None:
    """By the time that work takes if failures come at random, of which theirs is a series."""
    between = save * 10**exponent

    def time_for_work(interval: float) -> float:
        return between * exp(restart / between) * (exp((interval + save) / between) - 1) / interval

    chosen = best_interval(save, between)
    sweep = (chosen * exp(log(30) * step / 200) for step in range(-200, 201))
    assert time_for_work(chosen) <= min(map(time_for_work, sweep)) * 1.001
