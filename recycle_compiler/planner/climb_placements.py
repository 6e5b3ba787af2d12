"""Failures moved from stage to stage, as long as schedules get shorter.

Bounds say what failures cost a stage alone. They take it that micro-batches come when the stage has time for
them, so the placement with the least bound fills every stage to the brim, each with another number of
workers. Its plans are far above it: what one stage loses, the next ones lose too. With failures spread evenly
all stages run in step and lose little, but the slowest one has more to do. The shortest plans lie between.

So blends of both are scheduled by a few rules, one run of the list scheduler each, which takes some
milliseconds. From the shortest one on, failures move from stages that have no time to spare to others, and
what is no longer is kept.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.route_microbatches import routes
from recycle_compiler.scheduling.budget import Budget, Goal, Noise, Sizes, Visits
from recycle_compiler.scheduling.exchanges import Placed, placed_by_rule
from recycle_compiler.scheduling.problem import UNLIMITED, Problem, rerouted, with_times_of
from recycle_compiler.scheduling.routes import is_dealt_in_turn
from recycle_compiler.scheduling.rules import RuleSetting, greedy_priority, rule_of
from recycle_compiler.scheduling.timing import Clock
from recycle_compiler.scheduling.tuning import FIRST_SETTINGS

Counts = tuple[int, ...]
"""Failed workers of each stage."""

_RULES = 3
"""For every blend; the best of them is the one for all that comes after."""
_BLENDS = 4
"""Steps from the even spread to the least bound."""
_GUIDED = 70
"""Percent of the moves that go from the half of the stages with least time to spare to the other half."""
_TWO_MOVES = 4
"""One try out of so many moves failures twice."""
_FEW = (1, 1, 1, 2, 3)
_SHARE = 16
"""One move out of six moves a pipeline out of so many."""


class Found(NamedTuple):
    """A placement with the best schedule that rules have found for it."""

    period: int
    lateness: int
    counts: Counts
    setting: RuleSetting
    spare: tuple[int, ...]
    """By how much each stage ends sooner than the period asks for."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def can_climb(job: JobSpec, healthy: Problem) -> bool:
    """True if rules alone say enough about a placement: a large job with one chunk on every worker."""
    return (
        job.techniques.adaptive
        and healthy.ops >= Sizes.COMPILED
        and not healthy.has_more_edges
        and is_dealt_in_turn(healthy)
    )


class Climb:
    """Placements of one number of failures."""

    def __init__(self, job: JobSpec, healthy: Problem, aim: int, budget: Budget) -> None:
        """`aim` is a period that no placement goes below."""
        self._job, self._healthy = job, healthy
        self._goal = Goal(aim, aim)
        self._budget = budget
        self._noise = Noise(job.solver.seed)
        self._priority = greedy_priority(healthy)
        self._seen: set[Counts] = set()

    def best(self, begins: Iterable[Counts], tries: int) -> Found | None:
        """The best of all blends between these, and what comes of moving failures from there."""
        found: list[Found] = []
        for counts in begins:
            if found and self._budget.is_spent():
                break
            tried = self._found(counts, FIRST_SETTINGS[:_RULES])
            found += [tried] if tried is not None else []
        if not found:
            return None
        best = min(found, key=lambda one: one.rank)
        for _ in range(tries):
            if best.period <= self._goal.enough or self._budget.is_spent():
                break
            counts = self._moved(best)
            if counts in self._seen:
                continue
            tried = self._found(counts, (best.setting,))
            if tried is not None and tried.rank <= best.rank:
                best = tried
        return best

    def _found(self, counts: Counts, settings: tuple[RuleSetting, ...]) -> Found | None:
        job, healthy = self._job, self._healthy
        self._seen.add(counts)
        hosts = Target(job, normal_form(counts, job.pipelines)).hosts
        host = routes(job, hosts).reshape(healthy.units, healthy.chunks)
        left = job.left_by(counts)
        problem = with_times_of(rerouted(healthy, hosts, host), left)
        if not can_run(left, problem):
            return None
        self._budget.spend((Visits.SET_UP + Visits.RULE * len(settings)) * problem.ops)
        clock = Clock(problem)
        tried: list[tuple[Placed, RuleSetting]] = []
        for setting in settings:
            placed = placed_by_rule(clock, self._priority, rule_of(problem, setting), self._goal)
            if placed is not None:
                tried.append((placed, setting))
        if not tried:
            return None
        best, setting = min(tried, key=lambda one: one[0].rank)
        last = best.end.reshape(-1, problem.chunks).max(axis=0)
        spare = clock.deadlines(best.first, best.period) - last
        return Found(best.period, best.lateness, counts, setting, tuple(spare.tolist()))

    def _moved(self, best: Found) -> Counts:
        """Some failures are on other stages."""
        noise, counts = self._noise, list(best.counts)
        stages = len(counts)
        by_spare = np.argsort(best.spare, kind="stable").tolist()
        half = (stages + 1) // 2
        for _ in range(1 if noise.below(_TWO_MOVES) else 2):
            if noise.below(100) < _GUIDED:
                source, sink = (
                    by_spare[noise.below(half)],
                    by_spare[half - 1 + noise.below(stages - half + 1)],
                )
            else:
                source, sink = noise.below(stages), noise.below(stages)
            step = noise.below(len(_FEW) + 1)
            many = _FEW[step] if step < len(_FEW) else self._job.pipelines // _SHARE
            moved = min(many, counts[source], self._job.pipelines - 1 - counts[sink])
            if moved > 0:
                counts[source] -= moved
                counts[sink] += moved
        return tuple(counts)


def blends(one: Counts, other: Counts) -> list[Counts]:
    """From one to the other, in equal steps."""
    return list(dict.fromkeys(between(one, other, step, _BLENDS) for step in range(_BLENDS + 1)))


def between(one: Counts, other: Counts, part: int, parts: int) -> Counts:
    """So many of the parts of the way from one to the other, with as many failures as lie between."""
    exact = [a * (parts - part) + b * part for a, b in zip(one, other, strict=True)]
    counts = [each // parts for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda stage: -(exact[stage] % parts))
    for stage in by_rest[: sum(exact) // parts - sum(counts)]:
        counts[stage] += 1
    return tuple(counts)


def can_run(left: JobSpec, problem: Problem) -> bool:
    """True if the workers that are left on every stage can hold a micro-batch and all experts."""
    return left.short_of_slots is None and all(
        room == UNLIMITED or room >= needed
        for room, needed in zip(problem.capacity, problem.activation, strict=True)
    )
