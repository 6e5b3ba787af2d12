"""All that a job in layers can choose from beside its own cut: other cuts, and two groups of pipelines.

    recuts      for each number of failures the fastest plans under one cut (recut.py)
    bounds      what neither one cut nor two groups go below (group_bounds.py)
    groups      where that is well below the fastest plan under one cut, plans of two groups (groups.py)

Groups are looked for where a job has no more than some workers, unless they are asked for. Where they are
not, bounds are about one cut alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.group_bounds import least_periods
from recycle_compiler.planner.groups import GroupedRecut, grouped_recuts, why_no_groups
from recycle_compiler.planner.recut import (
    FoundRecuts,
    Own,
    RecutPlans,
    plan_recuts,
    with_bound,
    with_bound_over,
)
from recycle_compiler.planner.worker_processes import Run, running
from recycle_compiler.scheduling.budget import Guard

_MOST_WORKERS = 192
"""Of a job that gets groups without being asked for them: in larger ones workers divide well enough."""


class RecutChoice(NamedTuple):
    """Plans and bounds that the search over cuts and groups found."""

    made: list[RecutPlans]
    """Under one cut."""
    grouped: list[GroupedRecut]
    bounds: dict[int, int]
    """For each number of failures, what no plan goes below of any cut, nor of two groups if these were
    looked for."""
    cut_short: frozenset[int]
    """Numbers of failures for which there was no time to compare all layouts."""

    def best(self, workers: int, own_period: int) -> RecutPlans | GroupedRecut | None:
        """The fastest for so many workers or fewer; None where the own cut is as fast."""
        every: list[RecutPlans | GroupedRecut] = [*self.made, *self.grouped]
        fitting = (one for one in every if sum(one.layout.workers) <= workers)
        fastest = min(fitting, key=lambda one: one.claims.period, default=None)
        return fastest if fastest is not None and fastest.claims.period < own_period else None

    @property
    def plans(self) -> list[tuple[Streams, ...]]:
        """As a bundle has them: of each cut, of each two groups, and of either group alone."""
        known = {recut.layout for recut in self.made if recut.split == 1}
        alone = (each for one in self.grouped for each in one.alone)
        others = {recut.layout: recut.plans for recut in alone if recut.layout not in known}
        return [*(one.plans for one in self.made), *(one.plans for one in self.grouped), *others.values()]

    def own(self, plans: list[Streams]) -> list[Streams]:
        """The plans of the own cut, with what is known of all others."""
        return [with_bound(plan, self.bounds[len(plan.failed)]) for plan in plans]


def takes_groups(job: JobSpec) -> bool:
    """True if groups are looked for without being asked for."""
    return job.grouping and job.workers <= _MOST_WORKERS and why_no_groups(job) is None


def plan_cuts(
    job: JobSpec, own: Own, processes: int, guard: Guard, *, groups: bool | None = None
) -> RecutChoice:
    """Plans under other cuts, for the numbers of failures that the own cut has plans for.

    With groups of pipelines where `groups` says so; by default as the job does.
    """
    with running(1 if len(own) == 1 else processes) as run:
        found = plan_recuts(job, own, run, guard)
        if takes_groups(job) if groups is None else groups:
            return _with_groups(job, own, found, run, guard)
    return RecutChoice(found.made, [], found.bounds, found.cut_short)


def _with_groups(job: JobSpec, own: Own, found: FoundRecuts, run: Run, guard: Guard) -> RecutChoice:
    bounds = least_periods(job, found.bounds)
    periods = dict(_fastest(job, own, found))
    grouped, cut_short = grouped_recuts(job, periods, bounds, run, guard)
    made = [with_bound_over(recut, job, bounds) for recut in found.made]
    grouped = [
        one._replace(alone=tuple(with_bound_over(each, job, bounds) for each in one.alone)) for one in grouped
    ]
    return RecutChoice(made, grouped, bounds, found.cut_short | cut_short)


def _fastest(job: JobSpec, own: Own, found: FoundRecuts) -> Iterator[tuple[int, int]]:
    """For each number of failures the shortest period under one cut."""
    for failures, plan in sorted(own.items()):
        period = plan.claims.period
        best = found.best(job.workers - failures, period)
        yield failures, period if best is None else best.claims.period
