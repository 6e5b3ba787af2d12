"""Throughput by the number of live workers: `python -m bench.live_workers [job ...]`.

Two claims for jobs whose cuts are free: no number of live workers gives less than the next smaller one, and
none gives over 2 % less per worker than a neighbour. For every number from all workers down to the end of the
tolerance: the fastest plan of the bundle, what `simulate`'s policy `ours` trains at a day after the last
failure, and a bound over all cuts and all two groups of pipelines that a job may have. Where even a plan at
the bound would be 2 % under a neighbour, whole layers, workers and micro-batches do not divide better: that
is unavoidable. Elsewhere it may be either.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from bench.fleet_settings import Made, compiled, shuffled_workers
from bench.parts import Parts
from bench.report import ROOT, Section, percent
from bench.sums_in_a_row import bound_in_a_row, has_none_beside, per_layer, row_beside, sums_beside
from recycle_compiler.fleet.course import Start, lead
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policy import Change, Worker
from recycle_compiler.fleet.setting import ChangeCosts, Known, make_setting
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, job_of_layout
from recycle_compiler.planner.cut_bounds import layout_period
from recycle_compiler.planner.group_bounds import TwoGroups
from recycle_compiler.planner.groups import why_no_groups
from recycle_compiler.planner.layout_bounds import (
    AdmittedLayouts,
    layout_bound,
    problem_of_layout,
    raised_bound,
)
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.scheduling.budget import Guard, Sizes

TITLE = "Throughput by live workers"
_DAY = 86400.0
_ALLOWED = 0.02
"""Part of a neighbour's throughput per worker that a number of workers may lack."""
_ROUNDING = 1e-9
_MOST_LAYOUTS = 10_000
"""Of a group, up to which each has a bound."""
_FEW_LAYOUTS = 2000
"""Beyond, all of them at once are looked at first."""
_NANOSECONDS = 600_000_000_000
"""For the bound of one number of workers."""
_GAP = "2%"
"""To the bound, within which a plan of these jobs is good enough: as much as the claim allows. With a smaller
one what still breaks it is not what was good enough."""
_GPT = """job {name} {{
  parallel {{ pipeline = {stages}  data = {pipelines}  tensor = 8 }}
  batch    {{ microbatches = {microbatches}  micro = 4 }}
  model gpt {{ layers = {layers}  hidden = {hidden}  heads = {heads}  sequence = 2048  vocabulary = 51200 }}
  device h100
  memory   {{ capacity = {memory} GiB }}
  tolerate {{ failures = {failures} }}
  solver   {{ gap = 2% }}
}}
"""


def _gpt(name: str, layers: int, grid: tuple[int, int], microbatches: int, **others: int) -> str:
    stages, pipelines = grid
    facts = {"hidden": 6144, "memory": 80, "failures": stages * pipelines // 4, **others}
    facts["heads"] = facts["hidden"] // 128
    return _GPT.format(
        name=name, layers=layers, stages=stages, pipelines=pipelines, microbatches=microbatches, **facts
    )


def _year() -> str:
    text = (ROOT / "examples" / "year.job").read_text(encoding="utf-8")
    return text.replace("failures = 4", "failures = 8")


JOBS = {
    "year": _year(),
    "year-1024": _year().replace("global = 512", "global = 1024"),
    "layers-13": _gpt("layers-13", 13, (4, 4), 8),
    "layers-30": _gpt("layers-30", 30, (6, 4), 12),
    "layers-96": _gpt("layers-96", 96, (8, 4), 16, hidden=4096),
    "tight": _gpt("tight", 32, (8, 3), 16, hidden=8192, memory=22),
    "wide": _gpt("wide", 32, (4, 4), 32, hidden=4096, memory=141),
    "few-microbatches": _gpt("few-microbatches", 24, (4, 4), 4),
    "short-pipelines": _gpt("short-pipelines", 20, (2, 8), 6, hidden=4096),
}
"""Texts of jobs whose cuts are free."""
_PARTS = Parts("live_workers")


class Row(NamedTuple):
    """A number of live workers of a job; iterations a second, None where nothing can run."""

    live: int
    planned: float
    """Of the fastest plan of the bundle for so many workers or fewer."""
    ours: float
    """Of the policy, a day after the last failure."""
    bound: float
    """Throughput that no plan of any cut or of any two groups exceeds."""

    @property
    def each(self) -> float:
        """Per worker."""
        return self.ours / self.live


class Violation(NamedTuple):
    """A number of live workers that breaks a claim."""

    live: int
    words: str
    is_avoidable: bool


def rows(text: str) -> list[Row]:
    """The rows of one job, all workers first."""
    job = parse_job_text(text, "job")
    made = compiled(job)
    assert made.cuts is not None, "a job in layers"
    steady = _steady_rates(job, made)
    found: list[Row] = []
    for failures, plan in made.own.items():
        own, live = plan.claims.period, job.workers - failures
        best = made.cuts.best(live, own)
        period = own if best is None else min(own, best.claims.period)
        found.append(Row(live, 1e9 / period, steady[failures], 1e9 / made.cuts.bounds[failures]))
    return [_with_raised_bound(job, row, found) for row in found]


def _with_raised_bound(job: JobSpec, row: Row, found: Sequence[Row]) -> Row:
    """A row that lacks more than is allowed, with its bound by all layouts that might lack less."""
    best = max(one.each for one in found if abs(one.live - row.live) <= 1)
    if row.each >= best * (1 - _ALLOWED):
        return row
    limit = int(1e9 / (best * (1 - _ALLOWED) * row.live)) + 1
    bound = max(round(1e9 / row.bound), least_below(job, row.live, limit))
    return row._replace(bound=1e9 / bound)


def least_below(job: JobSpec, workers: int, limit: int) -> int:
    """Period that no plan of any cut or of any two groups goes below, if it is below a limit; else the limit.

    0 where there are too many layouts to compare.
    """
    layouts = Layouts(job, workers)
    one_cut = layouts.least_period(workers) or limit
    if one_cut < limit:
        deepest = Sizes.LARGE // (3 * layouts.units)
        guard = Guard(_NANOSECONDS)
        one_cut = raised_bound(job, layouts, workers, one_cut, limit, deepest, guard).period
    least = min(one_cut, limit)
    return least if why_no_groups(job) is not None else _least_of_groups(job, workers, least)


def _least_of_groups(job: JobSpec, workers: int, limit: int) -> int:
    """The same for two groups: for each share and number of workers, each layout of the one that keeps to the
    limit, beside all that the other may have."""
    fewest = TwoGroups(job, workers).fewest(limit - 1)
    units = len(fewest.small) - 1
    least = limit
    for share in range(1, units):
        most = workers - int(fewest.large[units - share])
        for few in range(int(fewest.small[share]), most + 1):
            small = _side(job, share, 1, few, limit)
            large = _side(job, units - share, job.redundancy, workers - few, limit)
            fewer, more = sorted((small, large), key=lambda side: side.count)
            if fewer.count > _MOST_LAYOUTS:
                return 0
            for layout in fewer.able(more.job.redundancy):
                least = min(least, _least_beside(fewer, layout, more, least))
                if not least:
                    return 0
    return least


def _least_beside(side: "Side", layout: Layout, other: "Side", limit: int) -> int:
    """Period that no plan of this layout goes below beside any of the other side; 0 if these are too many."""
    if other.count > _FEW_LAYOUTS and has_none_beside(other.job, other.workers, layout, limit):
        return limit
    if other.count > _MOST_LAYOUTS:
        return 0
    least = limit
    for beside in other.able(side.job.redundancy):
        bound = side.bound(layout, beside, least)
        if bound < least:
            least = min(least, max(bound, other.bound(beside, layout, least)))
    return least


def _side(job: JobSpec, units: int, holders: int, workers: int, limit: int) -> "Side":
    alone = replace(job, pipelines=1, microbatches=units, redundancy=holders, split_ppm=None)
    return Side(alone, workers, limit)


class Side:
    """One of two groups, as a job with its share of the micro-batches, and so many workers."""

    def __init__(self, job: JobSpec, workers: int, limit: int) -> None:
        self.job, self.workers = job, workers
        self._layouts = AdmittedLayouts(Layouts(self.job, workers), limit - 1, workers)
        self.count = len(self._layouts)
        self._limit = limit
        self._able: list[Layout] | None = None

    def able(self, beside: int) -> list[Layout]:
        """Layouts that may keep to the limit with so many more holders of every layer, or more."""
        if self._able is None:
            self._able = [one for one in self._layouts if self._alone(one, beside) < self._limit]
        return self._able

    def _alone(self, layout: Layout, beside: int) -> int:
        summed = self._summed(layout, [beside] * sum(layout.layers))
        period = layout_period(summed, layout)
        return period if period >= self._limit else max(period, layout_bound(summed, layout))

    def bound(self, layout: Layout, other: Layout, limit: int) -> int:
        """Period below which no plan of the layout beside the other group goes, or less beyond the limit."""
        beside = per_layer(other)
        summed = self._summed(layout, beside)
        period = layout_period(summed, layout)
        period = period if period >= limit else max(period, layout_bound(summed, layout))
        if period >= limit:
            return period
        problem = problem_of_layout(job_of_layout(summed, layout), layout)
        return bound_in_a_row(problem, row_beside(layout, other, self._sums(layout, beside)), period)

    def _summed(self, layout: Layout, beside: Sequence[int]) -> JobSpec:
        """The job with each layer's sum over the workers of both groups, as part of its step."""
        costs = self.job.layer_costs
        assert costs is not None, "a job in layers"
        after = tuple(map(sum, zip(costs.optimizer, self._sums(layout, beside), strict=True)))
        return replace(self.job, layer_costs=replace(costs, optimizer=after, reduce=(0,) * costs.count))

    def _sums(self, layout: Layout, beside: Sequence[int]) -> list[int]:
        costs = self.job.layer_costs
        assert costs is not None, "a job in layers"
        return sums_beside(costs.reduce, per_layer(layout), beside)


def _steady_rates(job: JobSpec, made: Made) -> list[float]:
    """Of the policy on the evening of each day; one worker fails every night."""
    own, recuts = made.plans
    setting = make_setting(job, own, Known(costs=ChangeCosts()), recuts)
    changes: list[Change] = []
    down: frozenset[Worker] = frozenset()
    for number, worker in enumerate(shuffled_workers(job)[: job.failures], start=1):
        down |= {worker}
        changes.append(Change(number * _DAY, frozenset({worker}), frozenset(), down, 0))
    course = lead(Ours(setting), Start(frozenset(), 0), changes, (len(changes) + 1) * _DAY)
    evenings = [(day + 1) * _DAY - 1 for day in range(len(changes) + 1)]
    return [next(one.rate for one in course.stretches if one.begin <= at < one.end) for at in evenings]


def violations(found: Sequence[Row]) -> Iterator[Violation]:
    """Numbers of live workers that break one of the claims."""
    for more, fewer in pairwise(found):
        if more.ours < fewer.ours * (1 - _ROUNDING):
            short = percent(1 - more.ours / fewer.ours)
            yield Violation(more.live, f"{more.live} give {short} less than {fewer.live}", True)
    for here, other in (pair for both in pairwise(found) for pair in (both, both[::-1])):
        if here.each < other.each * (1 - _ALLOWED):
            at_best = here.bound / here.live / other.each
            words = (
                f"{here.live} give {percent(1 - here.each / other.each)} less per worker than {other.live}, "
                f"{percent(1 - at_best)} at their bound"
            )
            yield Violation(here.live, words, at_best >= 1 - _ALLOWED)


def _kept_rows(name: str, gap: str) -> list[Row]:
    part = name if gap == _GAP else f"{name}-{gap}"
    text = JOBS[name].replace(f"gap = {_GAP}", f"gap = {gap}")
    return [Row(*row) for row in _PARTS.value(part, lambda: rows(text))]


def section(names: Sequence[str] = tuple(JOBS), gap: str = _GAP) -> Section:
    """A row for each number of live workers of each job."""
    lines: list[tuple[str, ...]] = []
    for name in names:
        found = _kept_rows(name, gap)
        broken = {row.live: "" for row in found}
        for one in violations(found):
            words = one.words if one.is_avoidable else f"unavoidable: {one.words}"
            broken[one.live] = "; ".join(filter(None, (broken[one.live], words)))
        whole = found[0].each
        lines += [
            (
                name,
                str(row.live),
                f"{row.planned / found[0].planned:.3f}",
                f"{row.ours / found[0].ours:.3f}",
                f"{row.each / whole:.3f}",
                f"{row.bound / row.live / whole:.3f}",
                broken[row.live] or "-",
            )
            for row in found
        ]
    return Section(
        title=TITLE,
        command="python -m bench.live_workers" + (f" --gap {gap}" if gap != _GAP else ""),
        words=(
            "Relative to all workers: the fastest plan of the bundle; what ours trains at a day after the "
            "last failure; the same per live worker; what no plan of any cut or of any two groups exceeds "
            "per live worker. Where a row breaks a claim, the bound is that of all layouts one by one."
        ),
        columns=("job", "live", "plan", "ours", "per worker", "bound", "breaks"),
        rows=tuple(lines),
        origin=_PARTS.origin,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"any of {', '.join(JOBS)}")
    parser.add_argument(
        "--gap", default=_GAP, help="within which plans are good enough (default: %(default)s)"
    )
    arguments = parser.parse_args()
    names: list[str] = arguments.jobs
    for name in names:
        if name not in JOBS:
            parser.error(f"unknown job {name}; there are {', '.join(JOBS)}")
    for name in names or JOBS:
        print(section((name,), arguments.gap).text(), flush=True)


if __name__ == "__main__":
    main()
