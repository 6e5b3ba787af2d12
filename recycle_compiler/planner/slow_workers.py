"""A plan in which slow workers have fewer micro-batches than their peers.

    1:2 is 3 times slower, 18 micro-batches of 3 peers:    6 6 6    -->    8 8 2

The plan with equal shares comes first. Then shares are compared by quick plans with the times of the slow
workers: as many as each has time for, none, equal ones with another order of ops, and neighbours of the best.
The best of them is planned with care, and so is the one in which slow workers have nothing, where it is
close. Whichever has the shortest step is taken, so the plan is never worse than the one with equal shares.
It is an ordinary plan of the job: what it claims holds for workers that are not slow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from recycle_compiler.ir.failure import FailureSet, Worker, worker_number
from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.pipeline import Pipeline
from recycle_compiler.passes.rename_workers import RenameWorkers, names_of_roles, normal_slow
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.standard import GRAPH_PASSES, LOWERING_PASSES
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.problem import problem_of, slowed
from recycle_compiler.scheduling.schedules import graph_of, starts_of
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.slow_workers import SlowWorkers, bearable, stage_shares
from recycle_compiler.scheduling.timing import Clock

_NEIGHBOURS = 8
"""Shares that are tried around the best known ones."""
_STEP = 8
"""They differ from it by this part, and by one micro-batch at least."""
_CLOSE = 106
"""In percent of the best quick plan: a plan without the slow workers that is worth a longer look."""


@dataclass(frozen=True, slots=True, eq=False)
class SlowPlan:
    """A plan, and how long its step takes with the slow workers; in ticks."""

    streams: Streams
    step: int
    equal_step: int
    """Of the plan that knows nothing of them."""
    shares: tuple[int, ...]
    """Micro-batches of each slow worker."""


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    schedule: Schedule
    slow: SlowWorkers
    """By the names of the schedule."""

    @property
    def step(self) -> int:
        return slow_step(self.schedule, self.slow)

    @property
    def shares(self) -> tuple[int, ...]:
        ops = self.schedule.ops
        forward = ops.kind == OpKind.F
        pipelines = self.schedule.job.pipelines
        loads = (forward & (ops.worker == worker_number(w, pipelines)) for w, *_ in self.slow)
        return tuple(int(load.sum()) for load in loads)


def best_for_slow(
    equal: Streams, schedule: Schedule, slow: SlowWorkers, effort: Effort, guard: Guard
) -> SlowPlan:
    """The best of several shares; `equal` and its schedule are the plan for workers of equal speed."""
    job, failed = equal.job, equal.failed
    names = names_of_roles(schedule.failed, failed, job)
    without = _Found(schedule, tuple(one._replace(worker=names[one.worker]) for one in slow))
    equal_step = without.step
    search = _Search(job, schedule.failed, normal_slow(slow, failed, job.pipelines), effort, guard)
    others = [(found.step, found.schedule.claims.period, found) for found in search.best()]
    step, _, best = min(others, key=lambda entry: entry[:2])
    if equal_step <= step:
        return SlowPlan(equal, equal_step, equal_step, without.shares)
    streams = (LOWERING_PASSES >> RenameWorkers(failed, search.slow, slow)).run(best.schedule)
    # What was proven for equal shares holds for all.
    claims = replace(streams.claims, lower_bound=equal.claims.lower_bound, reason=equal.claims.reason)
    streams = replace(streams, claims=claims)
    return SlowPlan(streams, step, equal_step, best.shares)


def slow_step(schedule: Schedule, slow: SlowWorkers) -> int:
    """Ticks of a step of this schedule when some workers are slow."""
    problem = problem_of(graph_of(schedule))
    clock = Clock(slowed(problem, slow))
    timed = clock.time(clock.order_of(starts_of(schedule, problem)))
    assert timed is not None
    return timed.period


def quick_slow_step(job: JobSpec, failed: FailureSet, slow: SlowWorkers, guard: Guard) -> int:
    """Ticks of a step of a quick plan in which slow workers have what they have time for; of normal names."""
    return _Search(job, failed, slow, Effort(), guard).quick()


Shares = tuple[int | None, ...]
"""Of each slow worker; None for what it has time for."""


class _Search:
    """Compares shares for one failure state in its normal form."""

    def __init__(
        self, job: JobSpec, failed: FailureSet, slow: SlowWorkers, effort: Effort, guard: Guard
    ) -> None:
        self.slow = slow
        self._effort = effort
        self._guard = guard
        self._graph: Graph = GRAPH_PASSES.run(Target(job, failed))
        self._problem = problem_of(self._graph)
        self._quick: dict[Shares, int] = {}
        known = {worker_number(one.worker, job.pipelines) for one in slow}
        # Where all workers of a stage are slow, one of them has to do the work.
        self._movable = tuple(
            number
            for number, one in enumerate(slow)
            if any(worker not in known for worker in self._hosts(one.worker))
        )

    def best(self) -> Iterator[_Found]:
        """Plans for the best shares, and for none where that may be better."""
        chosen = self._choose()
        yield self._planned(chosen)
        nothing = self._with(self._ideal, 0)
        if chosen != nothing and self._try(nothing) * 100 <= self._try(chosen) * _CLOSE:
            yield self._planned(nothing)

    def quick(self) -> int:
        """A step with the ideal shares."""
        return self._try(self._ideal)

    @property
    def _ideal(self) -> Shares:
        return self._resolved((None,) * len(self.slow))

    def _choose(self) -> Shares:
        for begin in (self._ideal, self._with(self._ideal, 0), self._equal()):
            self._try(begin)
        for shares in islice(self._neighbours(), _NEIGHBOURS):
            if self._guard.strikes():
                break
            self._try(shares)
        return min(self._quick, key=self._try)

    def _neighbours(self) -> Iterator[Shares]:
        """Shares next to the best so far that have not been tried."""
        while True:
            best = min(self._quick, key=self._try)
            near = (self._moved(best, number, sign) for number in self._movable for sign in (-1, 1))
            new = next((shares for shares in near if shares not in self._quick), None)
            if new is None:
                return
            yield new

    def _moved(self, shares: Shares, number: int, sign: int) -> Shares:
        share, stage = shares[number] or 0, self.slow[number].worker.stage
        others = sum((s or 0) for s, one in zip(shares, self.slow, strict=True) if one.worker.stage == stage)
        most = self._problem.units - others + share
        moved = min(most, max(0, share + sign * max(1, share // _STEP)))
        return self._resolved((*shares[:number], moved, *shares[number + 1 :]))

    def _with(self, shares: Shares, share: int) -> Shares:
        changed = (share if number in self._movable else old for number, old in enumerate(shares))
        return self._resolved(tuple(changed))

    def _equal(self) -> Shares:
        host = self._problem.host
        pipelines = self._graph.job.pipelines
        loads = tuple(int((host == worker_number(w, pipelines)).sum()) for w, *_ in self.slow)
        return tuple(load if number in self._movable else None for number, load in enumerate(loads))

    def _resolved(self, shares: Shares) -> Shares:
        """With numbers for all who have peers that are not slow, None for the others."""
        slow, found = self._given(shares), list(shares)
        for number in self._movable:
            worker = slow[number].worker
            hosts = [number % self._problem.pipelines for number in self._hosts(worker)]
            each = stage_shares(self._problem.units, hosts, worker.stage, slow)
            found[number] = each[hosts.index(worker.pipeline)]
        return tuple(share if number in self._movable else None for number, share in enumerate(found))

    def _hosts(self, worker: Worker) -> tuple[int, ...]:
        """The workers that share the work of this one."""
        number = worker_number(worker, self._problem.pipelines)
        return next(hosts for hosts in self._problem.hosts if number in hosts)

    def _given(self, shares: Shares) -> SlowWorkers:
        return tuple(one._replace(share=share) for one, share in zip(self.slow, shares, strict=True))

    def _try(self, shares: Shares) -> int:
        """Time of a step with these shares and a quick plan."""
        if shares not in self._quick:
            schedule = self._passes(shares, self._effort.quick()).run(self._graph)
            self._quick[shares] = slow_step(schedule, bearable(self.slow))
        return self._quick[shares]

    def _planned(self, shares: Shares) -> _Found:
        passes = self._passes(shares, self._effort) >> CanonicalizeSchedule()
        return _Found(passes.run(self._graph), self.slow)

    def _passes(self, shares: Shares, effort: Effort) -> Pipeline[Graph, Schedule]:
        slow = self._given(shares)
        return RouteMicrobatches(slow) >> AssignSlots(effort, self._guard, slow)
