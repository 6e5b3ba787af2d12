"""Reports counted once more, by plain code that shares nothing with the product: second by second, by sums
over curves, and by a sweep."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from math import exp, log

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.policy import NAMES
from recycle_compiler.fleet.report import USES, FleetReport, PolicyOutcome, report_document, report_table
from recycle_compiler.fleet.setting import best_interval
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace
from tests.compiler.fleet.settings import COSTS, setting
from tests.compiler.fleet.test_any_trace import FAULTS, HOURS, MACHINES, SETTLED, fleet

SECONDS = 3 * 3600
STAGES, PIPELINES = 4, 3
WORKERS = STAGES * PIPELINES
LOSSES = st.lists(st.tuples(st.integers(1, SECONDS - 1), st.integers(0, WORKERS - 1)), max_size=WORKERS)
"""Second of each failure, and which machine it is, for good."""


def lasting(losses: list[tuple[int, int]]) -> dict[int, set[int]]:
    """Machines by the second of their first failure."""
    found: dict[int, set[int]] = {}
    seen: set[int] = set()
    for second, machine in sorted(losses):
        if machine not in seen:
            found.setdefault(second, set()).add(machine)
        seen.add(machine)
    return found


def report_of(there: Fleet, *names: str, **changed: object) -> FleetReport:
    given_setting = replace(setting(), failure_interval=there.mean_time_between_failures, **changed)
    return compare(Comparison(given_setting, there, batch_of(given_setting, 6), price=2.5), names)


def without_returns(losses: dict[int, set[int]]) -> Fleet:
    events = [FleetEvent(float(at), f"m{one}", False) for at, every in losses.items() for one in sorted(every)]
    names = tuple(f"m{number}" for number in range(WORKERS))
    return Fleet(FleetTrace("made up", float(SECONDS), names, tuple(events)), lay_out(PIPELINES, STAGES, 1))


class Recounted:
    """A job of whole pipelines that restarts from checkpoints, second by second."""

    def __init__(self, losses: dict[int, set[int]], iteration: float) -> None:
        self.seconds: list[str] = []
        """Column of every second; what was done in it counts for all live workers together."""
        self.done = 0.0
        # Places are filled pipeline by pipeline, as machines are numbered.
        serves = {number: number % STAGES for number in range(WORKERS)}
        live = set(range(WORKERS))
        used, paused_until, self.live = set(live), 0, list[int]()
        self.pipelines: list[int] = []
        pipelines = PIPELINES
        for second in range(SECONDS):
            failed = losses.get(second, set())
            live -= failed
            if failed & used:
                self.undo(55)
                pipelines = len(live) // STAGES
                serves = {one: stage for one, stage in serves.items() if one in live}
                for stage in range(STAGES):
                    there = sorted(one for one, served in serves.items() if served == stage)
                    serves = {one: served for one, served in serves.items() if one not in there[pipelines:]}
                missing = [
                    stage
                    for stage in range(STAGES)
                    for _ in range(pipelines - sum(served == stage for served in serves.values()))
                ]
                free = sorted(live - serves.keys())
                serves |= dict(zip(free, missing, strict=False))
                used = set(serves)
                paused_until = max(paused_until, second + 1 + 30 + 10) if pipelines else paused_until
            self.live.append(len(live))
            self.pipelines.append(pipelines)
            state = "paused" if second < paused_until else "training" if pipelines else "down"
            self.seconds.append(state)
        shares = zip(self.seconds, self.pipelines, strict=True)
        self.done = sum(p / PIPELINES / iteration * 10 / 11 for state, p in shares if state == "training")

    def undo(self, seconds: int) -> None:
        """Work since the last checkpoint on average, and no more than since the last restart."""
        at = len(self.seconds) - 1
        while seconds and at >= 0 and self.seconds[at] != "paused":
            if self.seconds[at] == "training":
                self.seconds[at], seconds = "redone", seconds - 1
            at -= 1

    def columns(self) -> dict[str, float]:
        found = dict.fromkeys(USES, 0.0)
        for state, live, pipelines in zip(self.seconds, self.live, self.pipelines, strict=True):
            found["down"] += WORKERS - live
            if state == "paused":
                found["reconfiguring"] += live
            elif state == "down":
                found["down"] += live
            else:
                saved = live / 11
                useful = WORKERS * pipelines / PIPELINES * 10 / 11
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
    (found,) = (one for one in report_of(without_returns(first), "restart").outcomes if one.name == "restart")
    known = setting()
    again = Recounted(first, known.seconds(known.one_f_one_b))
    assert found.iterations == pytest.approx(again.done, rel=1e-9)
    assert found.gpu_hours._asdict() == pytest.approx(again.columns(), abs=1e-9)


@settings(max_examples=10, deadline=None)
@given(FAULTS, st.sampled_from([0, 2]))
def test_curves_add_up_to_what_is_done(faults: list[tuple[int, int, frozenset[int]]], spares: int) -> None:
    found = report_of(fleet(faults, spares), *NAMES)
    for outcome in found.outcomes:
        if outcome.average is None:
            continue
        points = outcome.timeline
        area = sum(
            (later.hours - here.hours) * here.throughput
            for here, later in zip(points, points[1:], strict=False)
        )
        assert points[0].hours == 0 and points[-1].hours == found.hours
        assert area * 3600 == pytest.approx(outcome.iterations * 6, rel=1e-9, abs=1e-9)
        assert outcome.average * found.hours == pytest.approx(area, rel=1e-9, abs=1e-9)
        # Hours without progress are those in which GPUs of the job save, reconfigure or wait.
        assert outcome.still <= found.hours * (1 + 1e-12)


@settings(max_examples=5, deadline=None)
@given(FAULTS, st.sampled_from([0, 2]))
def test_table_page_and_json_say_the_same(
    faults: list[tuple[int, int, frozenset[int]]], spares: int
) -> None:
    found = report_of(fleet(faults, spares), "ours", "restart", "torchft", "fault-free")
    document = json.loads(report_document(found))
    drawn = data_of(page(found))
    cells = {row[0]: row[1:] for row in rows_of(report_table(found), "GPU-hours")}
    assert document["gpu_hours_paid"] == pytest.approx((MACHINES + spares_of(found)) * HOURS, rel=1e-8)
    assert document["cost"] == pytest.approx(2.5 * document["gpu_hours_paid"], rel=1e-8)
    for policy in drawn["policies"]:
        said = document["policies"][policy["name"]]
        columns = list(said["gpu_hours"].values())
        assert sum(columns) == pytest.approx(document["gpu_hours_paid"], rel=1e-8)
        assert policy["uses"] == pytest.approx(columns, abs=0.001)
        in_table = [float(cell.replace(",", "")) for cell in cells[policy["name"]]]
        assert in_table == pytest.approx(columns, abs=0.0501)
        if said["average"]:
            million = document["cost"] * 1e6 / (said["average"] * document["hours"] * 3600)
            assert said["cost_per_million"] == pytest.approx(million, rel=1e-6)
            assert policy["cost"] == pytest.approx(million, rel=1e-6)


def spares_of(found: FleetReport) -> int:
    return found.spare_gpus


def data_of(text: str) -> dict[str, list[dict[str, object]]]:
    """The JSON that a page is drawn from."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def rows_of(text: str, head: str) -> Iterator[list[str]]:
    """Rows of the table whose first title this is."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(head))
    for line in lines[first + 1 :]:
        if not line:
            return
        yield line.split()


@settings(max_examples=20, deadline=None)
@given(FAULTS)
@example([(3600, 90_000, frozenset(range(MACHINES)))])
def test_more_hot_spares_lose_no_more_than_the_pauses_of_failures(
    faults: list[tuple[int, int, frozenset[int]]],
) -> None:
    """A spare that has all state takes over within the pause of the failure, so a job with more of them is
    never slower for longer than its own pauses."""
    most = 0.0
    for spares in (0, 1, 3):
        there = fleet(faults, spares)
        ours: PolicyOutcome = report_of(there, "ours", spares_have_state=True).outcomes[0]
        changes = 1 + sum(1 for _ in there.changes())
        useful = ours.gpu_hours.useful / MACHINES
        assert useful >= most - changes * SETTLED / 3600
        most = max(most, useful)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(1, 1000, allow_nan=False), st.floats(1, 6, allow_nan=False), st.floats(0, 600, allow_nan=False)
)
def test_no_interval_of_a_sweep_is_better_than_that_of_young_and_daly(
    save: float, exponent: float, restart: float
) -> None:
    """Against what work takes if failures come at random: Daly's exact model, of which theirs is a series."""
    between = save * 10**exponent

    def time_for_work(interval: float) -> float:
        cycle = exp((interval + save) / between) - 1
        return between * exp(restart / between) * cycle / interval

    chosen = best_interval(save, between)
    sweep = (chosen * exp(log(30) * step / 200) for step in range(-200, 201))
    assert time_for_work(chosen) <= min(map(time_for_work, sweep)) * 1.001
