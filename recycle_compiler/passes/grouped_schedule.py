"""The schedule of a job in groups, put together from a schedule of each group alone.

    group 0, stage 0    |==== work ====|R O|
             stage 1       |==== work ====|R O|          sums of chunks 0, 1 and 2, one after the other:
             stage 2          |==== work ====|R O|       whoever holds several takes part in several
    group 1, stage 0      |=== work ===| R  R  R  O O O

Groups hand nothing to each other but sums, so each is scheduled as an ordinary job. An op of one of its
stages becomes an op for each chunk of that stage, one right after the other. A sum begins when all holders of
its chunk have done all their work and the sums before it; a worker steps after its last sum. Stages of one
group mostly end at one time, and would wait for those who take part in the sums of other stages too. So each
opens as much later than the first as its sums come later: once with all sums in one row, and once with a new
row behind every border that all groups have, whichever gives the shorter period. Then groups are shifted
against each other as a whole, so that the period is shortest.

The bound is the largest of those of the groups, each with its share of the micro-batches: alone, a group
waits for nobody.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.groups import Group, ending_starts, groups_in_plan
from recycle_compiler.ir.job import JobSpec, SolverOptions, reduction_ends, step_ends
from recycle_compiler.ir.ops import Column, OpKind, OpTable
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.build_graph import BuildGraph
from recycle_compiler.passes.canonicalize_schedule import in_route_order
from recycle_compiler.passes.route_microbatches import RouteMicrobatches
from recycle_compiler.passes.split_backward import SplitBackward
from recycle_compiler.passes.stagger_optimizer import StaggerOptimizer
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.schedules import SearchedPlan
from recycle_compiler.scheduling.timing import Clock, Timed

_GRAPH = BuildGraph() >> SplitBackward() >> StaggerOptimizer() >> RouteMicrobatches()

PlanAlone = Callable[[Problem, SolverOptions], SearchedPlan]


@dataclass(frozen=True, slots=True)
class _Span:
    """From the first start to the last end of the work of a stage."""

    first: int
    last: int

    def later(self, by: int) -> "_Span":
        return _Span(self.first + by, self.last + by)


_Spans = Mapping[int, _Span]
"""By stage, for those groups that are placed."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One group, scheduled alone."""

    group: Group
    problem: Problem
    plan: SearchedPlan
    timed: Timed

    @property
    def spans(self) -> dict[int, _Span]:
        """Of each stage."""
        start = self.timed.start
        ends = np.where(start >= 0, start + self.problem.tasks.duration.reshape(start.shape), 0)
        both = zip(start[0].min(axis=0).tolist(), ends.max(axis=(0, 1)).tolist(), strict=True)
        return {stage: _Span(*span) for stage, span in zip(self.group.stages, both, strict=True)}


def schedule_groups(graph: Graph, plan: PlanAlone) -> Schedule:
    """The schedule of all groups; `plan` makes that of one."""
    job = graph.job
    groups = groups_in_plan(job, graph.failed)
    ways = (_placed(job, groups, opens, plan) for opens in _ways_to_open(job, groups))
    parts, shifts, spans = min(ways, key=lambda way: _period(job, way.spans))
    ops = graph.ops.take(graph.ops.kind != OpKind.S)
    work = ops.kind <= OpKind.W
    start = np.where(work, _starts(job, ops, parts, shifts), _endings(job, ops, spans))
    release = tuple(
        opens + shift for part, shift in zip(parts, shifts, strict=True) for opens in part.timed.release
    )
    makespan = max(span.last for span in spans.values()) - min(span.first for span in spans.values())
    order = schedule_order(ops, start)
    claims = replace(_claims(parts), makespan=makespan, period=_period(job, spans))
    return Schedule(job, graph.failed, ops.take(order), start[order], release, claims)


class _Placed(NamedTuple):
    """All groups, scheduled alone and shifted against each other."""

    parts: list[_Part]
    shifts: list[int]
    spans: dict[int, _Span]


def _placed(
    job: JobSpec, groups: Sequence[Group], opens: Sequence[tuple[int, ...]], plan: PlanAlone
) -> _Placed:
    parts = [_alone(job, group, late, plan) for group, late in zip(groups, opens, strict=True)]
    shifts = _shifts(job, parts)
    spans: dict[int, _Span] = {}
    for part, shift in zip(parts, shifts, strict=True):
        spans |= _later(part.spans, shift)
    return _Placed(parts, shifts, spans)


def _ways_to_open(job: JobSpec, groups: Sequence[Group]) -> list[tuple[tuple[int, ...], ...]]:
    """For each group how much later than its first each stage opens; without stagger, no later."""
    if not job.techniques.stagger:
        return [tuple((0,) * len(group.held) for group in groups)]
    rows = (reduction_ends(job), tuple(accumulate(job.reduce)))
    return list(dict.fromkeys(tuple(_opens(job, group, ends) for group in groups) for ends in rows))


def _claims(parts: Sequence[_Part]) -> Claims:
    """With the bound of the group that has the largest."""
    number = max(range(len(parts)), key=lambda one: (parts[one].plan.bound.period, -one))
    bound = parts[number].plan.bound
    cut_short = any(part.plan.cut_short for part in parts)
    return Claims(0, 0, bound.period, f"group {number}: {bound.reason}", cut_short)


def _alone(job: JobSpec, group: Group, opens: tuple[int, ...], plan: PlanAlone) -> _Part:
    """One group, its micro-batches in order, every op as early as it can be."""
    problem = problem_of(_GRAPH.run(Target(group.job, group.failed)))
    if job.techniques.stagger:
        problem = replace(problem, opens=opens)
    planned = plan(problem, job.solver)
    assert planned.host is None, "a group was planned with other routes than its graph's"
    clock = Clock(problem)
    order = clock.order_of(in_route_order(problem, planned.timed.start))
    timed = clock.within(order, planned.timed.period)
    assert timed is not None, "putting routes in order made the schedule longer"
    return _Part(group, problem, planned, timed)


def _opens(job: JobSpec, group: Group, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Ticks that each stage opens later than the first, so that all have a period until they step.

    `ends` has when the sum of each chunk ends.
    """
    stepped = step_ends(job, {stage: ends[held[-1]] for stage, held in enumerate(job.held)})
    steps = [stepped[stage] for stage in group.stages]
    return tuple(max(0, step - steps[0]) for step in steps)


def _reductions(job: JobSpec, spans: _Spans) -> list[int]:
    """For each chunk, when its sum begins."""
    free = {stage: span.last for stage, span in spans.items()}
    if not job.techniques.stagger:
        free = dict.fromkeys(free, max(free.values()))
    starts: list[int] = []
    for stages, reduce in zip(job.holders, job.reduce, strict=True):
        holders = [stage for stage in stages if stage in free]
        starts.append(max(free[stage] for stage in holders))
        free |= dict.fromkeys(holders, starts[-1] + reduce)
    return starts


def _period(job: JobSpec, spans: _Spans) -> int:
    starts, held = _reductions(job, spans), job.held
    last = {stage: held[stage][-1] for stage in spans}
    ends = step_ends(job, {stage: starts[chunk] + job.reduce[chunk] for stage, chunk in last.items()})
    if not job.techniques.stagger:
        return max(ends.values()) - min(span.first for span in spans.values())
    return max(ends[stage] - span.first for stage, span in spans.items())


def _shifts(job: JobSpec, parts: Sequence[_Part]) -> list[int]:
    """By how much each group starts later than alone; the first of all ops starts at 0.

    Without stagger all groups begin at once. Else one group after the other is placed among those before.
    """
    if not job.techniques.stagger:
        return [0] * len(parts)
    placed = parts[0].spans
    shifts = [0]
    for part in parts[1:]:
        shifts.append(_best_shift(job, placed, part.spans))
        placed |= _later(part.spans, shifts[-1])
    least = min(span.first for span in placed.values())
    return [shift - least for shift in shifts]


def _best_shift(job: JobSpec, placed: _Spans, own: _Spans) -> int:
    """The shift of one group with the shortest period.

    A period is the largest of several sums, each of which has the shift in it once, not at all, or taken
    away: as the shift grows, it first falls, then rises.
    """

    def period(shift: int) -> int:
        return _period(job, {**placed, **_later(own, shift)})

    high = max(span.last for span in (*placed.values(), *own.values()))
    low = -high
    while low < high:
        middle = (low + high) // 2
        if period(middle + 1) < period(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _later(spans: _Spans, by: int) -> dict[int, _Span]:
    return {stage: span.later(by) for stage, span in spans.items()}


def _starts(job: JobSpec, ops: OpTable, parts: Sequence[_Part], shifts: Sequence[int]) -> Column:
    """The start of every op on a micro-batch; of other ops, anything."""
    begin = np.zeros((3, job.pipelines * job.microbatches, job.chunks), dtype=np.int64)
    for part, shift in zip(parts, shifts, strict=True):
        for place in range(len(part.group.held)):
            _divide(job, part, place, shift, begin)
    kind = np.array([0, 1, 1, 2])[np.minimum(ops.kind, OpKind.W)]
    unit = np.maximum(ops.pipeline * job.microbatches + ops.microbatch, 0)
    return begin[kind, unit, ops.chunk]


def _divide(job: JobSpec, part: _Part, place: int, shift: int, begin: Column) -> None:
    """Fill in what the ops of one stage of a group become: one for each of its chunks."""
    group, is_split = part.group, part.problem.split[place]
    units = slice(group.first_unit, group.first_unit + part.problem.units)
    weight = job.backward_weight
    whole = tuple(map(sum, zip(job.backward_input, weight, strict=True)))
    chunks = group.held[place]
    for kind, (ticks, order) in enumerate(
        (
            (job.forward, chunks),
            (job.backward_input if is_split else whole, chunks[::-1]),
            (weight, chunks[::-1]),
        )
    ):
        now = part.timed.start[kind, :, place] + shift
        for chunk in order:
            begin[kind, units, chunk] = now
            now = now + ticks[chunk]


def _endings(job: JobSpec, ops: OpTable, spans: _Spans) -> Column:
    """The start of every reduction, optimizer step and gathering; of other ops, anything."""
    sums, steps, gathers = ending_starts(job, [spans[stage].last for stage in range(job.stages)])
    step = np.zeros((job.stages, job.chunks), dtype=np.int64)
    for place, start in steps.items():
        step[place] = start
    reduction = np.array(sums, dtype=np.int64)[ops.chunk]
    gathering = np.array(gathers or sums, dtype=np.int64)[ops.chunk]
    late = np.where(ops.kind == OpKind.G, gathering, step[ops.worker // job.pipelines, ops.chunk])
    return np.where(ops.kind == OpKind.R, reduction, late)
