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
from itertools import pairwise
from typing import NamedTuple

from bench.fleet_settings import Made, compiled, shuffled_workers
from bench.parts import Parts
from bench.report import ROOT, Section, percent
from recycle_compiler.fleet.course import Start, lead
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policy import Change, Worker
from recycle_compiler.fleet.setting import ChangeCosts, Known, make_setting
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.group_bounds import TwoGroups
from recycle_compiler.planner.groups import why_no_groups
from recycle_compiler.planner.layouts import Layouts

TITLE = "Throughput by live workers"
_DAY = 86400.0
_ALLOWED = 0.02
"""Part of a neighbour's throughput per worker that a number of workers may lack."""
_ROUNDING = 1e-9
_PARTS_OF_BOUND = 1000
"""A bound is found to one part in so many."""
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
    """What no plan of any cut, or of any two groups of which the large one can go on alone, exceeds."""

    @property
    def each(self) -> float:
        """Per worker."""
        return self.ours / self.live


class Violation(NamedTuple):
    """A number of live workers that breaks a claim."""

    live: int
    words: str
    is_avoidable: bool


def rows(text: str) -> Iterator[Row]:
    """The rows of one job, all workers first."""
    job = parse_job_text(text, "job")
    made = compiled(job)
    assert made.cuts is not None, "a job in layers"
    steady = _steady_rates(job, made)
    for failures, plan in made.own.items():
        own = plan.claims.period
        best = made.cuts.best(job.workers - failures, own)
        period = own if best is None else min(own, best.claims.period)
        bound = _least_period(job, job.workers - failures, made.cuts.bounds[failures], period)
        yield Row(job.workers - failures, 1e9 / period, steady[failures], 1e9 / bound)


def _least_period(job: JobSpec, workers: int, at_least: int, at_most: int) -> int:
    """What no plan goes below; in `made.cuts.bounds` either group may be one that cannot go on alone."""
    one_cut = Layouts(job, job.workers).least_period(workers)
    high = at_most if one_cut is None else min(one_cut, at_most)
    if why_no_groups(job) is not None:
        return high
    groups, low = TwoGroups(job, job.workers), at_least - 1
    while high - low > max(1, high // _PARTS_OF_BOUND):
        middle = (low + high) // 2
        fewest = groups.fewest(middle)
        fits = int((fewest.large[1:-1] + fewest.small[-2:0:-1]).min()) <= workers
        low, high = (low, middle) if fits else (middle, high)
    return low + 1


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


def _kept_rows(name: str) -> list[Row]:
    return [Row(*row) for row in _PARTS.value(name, lambda: list(rows(JOBS[name])))]


def section(names: Sequence[str] = tuple(JOBS)) -> Section:
    """A row for each number of live workers of each job."""
    lines: list[tuple[str, ...]] = []
    for name in names:
        found = _kept_rows(name)
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
        command="python -m bench.live_workers",
        words=(
            "Relative to all workers: the fastest plan of the bundle; what ours trains at a day after the "
            "last failure; the same per live worker; what no plan of any cut, or of any two groups of which "
            "the large one can go on alone, exceeds per live worker."
        ),
        columns=("job", "live", "plan", "ours", "per worker", "bound", "breaks"),
        rows=tuple(lines),
        origin=_PARTS.origin,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"any of {', '.join(JOBS)}")
    names: list[str] = parser.parse_args().jobs
    for name in names:
        if name not in JOBS:
            parser.error(f"unknown job {name}; there are {', '.join(JOBS)}")
    for name in names or JOBS:
        print(section((name,)).text(), flush=True)


if __name__ == "__main__":
    main()
