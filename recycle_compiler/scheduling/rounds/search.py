"""The search for a plan in rounds: list schedules under many rules, for rounds of several sizes.

Rounds have as many micro-batches as the chunk has workers, which makes them fewest. But a full round of many
workers waits for several rounds of a chunk with fewer, so on chunks that have time to spare the first rounds
and the last may be smaller. Where memory is too small for that, all chunks have rounds of one size: what the
stage with fewest workers can take. Such a plan is that of one pipeline, which can go on with any memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from math import prod
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.graph import Graph
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.ops import UNSET, OpKind
from recycle_compiler.ir.schedule import Schedule, schedule_order
from recycle_compiler.ir.streams import Claims
from recycle_compiler.scheduling.bounds import Bound, lower_bound
from recycle_compiler.scheduling.budget import Budget, Noise, Visits
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.rounds.problem import RoundsProblem, rounds_problem
from recycle_compiler.scheduling.rounds.routes import Shape, Sizes, fewest_rounds, in_rounds, in_sizes
from recycle_compiler.scheduling.rounds.timing import NO_LIMIT, RoundsClock, Rule, TimedRounds
from recycle_compiler.scheduling.schedules import finish_starts
from recycle_compiler.scheduling.search import Effort

_FEW = 3
"""Every so many rules are tried for a plan that others are only compared with."""
_GOOD = 3
"""Rules that are kept of those that were best for a shape."""
_TUNED = ((8, 30), (4, 80), (2, 250))
"""Numbers of schedules of different shapes that are tuned, and of changes to each."""
_NEAR, _NEAR_OF_FEW = 105, 120
"""In percent of the best, what a shape is worth looking at with; of a few small ones."""
_SEEDS = 4
_MOVES = 4
"""Times the moves that the search for an ordinary plan of as many ops makes."""
_MOST_TRIES = 20_000
_ALL_SHAPES = 256
"""All sizes of rounds on all chunks are tried where they are no more than that."""
_MOVED = 8
"""Shapes of a small plan that moves of rounds begin with, and a part of the tries for each."""


def schedule_rounds(graph: Graph, options: SolverOptions, effort: Effort, budget: Budget) -> Schedule:
    """The best schedule found, with its bound."""
    bound = lower_bound(problem_of(graph))
    enough = bound.period + bound.period * options.gap_ppm // 1_000_000
    shapes = _Shapes(graph, enough, effort, budget)
    best = shapes.best()
    found = shapes.found
    if best.timed.period > enough and effort.rounds:
        found = _tuned_among(found, enough, options, budget)
        best = min(found, key=_period_of)
    if best.timed.period > enough:
        best = _improved_among(found, enough, options, effort, budget)
    cut_short = budget.was_cut and best.timed.period > enough
    return _schedule(graph, best, bound, cut_short=cut_short)


def schedule_in_order(
    graph: Graph, shape: Shape, orders: Sequence[Sequence[tuple[int, int]]], cut_short: bool
) -> Schedule:
    """The schedule in these rounds, in the order that is known of each stage: of every op part and chunk."""
    problem = rounds_problem(graph, shape)
    clock = RoundsClock(problem)
    line_of = {
        (part, machine): line
        for line, (part, machine) in enumerate(
            zip(problem.part.tolist(), problem.machine.tolist(), strict=True)
        )
    }
    done = [0] * problem.lines
    order: list[int] = []
    for each in orders:
        for place in each:
            line = line_of[place]
            order.append(int(problem.first[line]) + done[line])
            done[line] += 1
    timed = clock.time(np.array(order, dtype=np.int64))
    assert timed is not None, "rounds of a plan wait for each other"
    bound = lower_bound(problem_of(graph))
    return _schedule(graph, _Found(shape, clock, timed, _NO_RULE), bound, cut_short=cut_short)


class _Found(NamedTuple):
    """A schedule, and the sizes of its rounds."""

    shape: Shape
    clock: RoundsClock
    timed: TimedRounds
    rule: Rule


_NO_RULE = Rule((), (), ())


def _period_of(found: _Found) -> tuple[int, int]:
    return found.timed.rank


class _Shapes:
    """The search for sizes of rounds; each is judged by list schedules."""

    def __init__(self, graph: Graph, enough: int, effort: Effort, budget: Budget) -> None:
        self._graph = graph
        self._enough = enough
        self._effort = effort
        self._budget = budget
        self._live = tuple(map(len, graph.target.live))
        self._units = graph.job.pipelines * graph.job.microbatches
        self._good: list[Rule] = []
        """Rules that were best for some shape."""
        self._is_few = False
        """True where only these are tried."""
        self._near = _NEAR
        self._best: _Found | None = None
        self.found: list[_Found] = []
        self._seen: set[Shape] = set()

    def best(self) -> _Found:
        """The best of those that are alike everywhere, and then of those that differ on some chunk."""
        for shape in self._plain():
            self._try(shape)
            # However little time is left: memory may be too tight for all but rounds of one size.
            if self._best is not None and self._is_done():
                break
        assert self._best is not None, "rounds of one size are those of one pipeline: any memory will do"
        if self._effort.rounds:
            for shape in self._all():
                self._try(shape)
                if self._is_done():
                    return self._best
        if self._effort.rounds and len(set(self._live)) > 1:
            self._vary()
        return self._best

    def _all(self) -> Iterator[Shape]:
        """Every one, if they are few; none otherwise."""
        sizes = [list(islice(_compositions(self._units, each), _ALL_SHAPES + 1)) for each in self._live]
        if prod(map(len, sizes)) <= _ALL_SHAPES:
            self._near = _NEAR_OF_FEW
            yield from product(*sizes)

    def _plain(self) -> Iterator[Shape]:
        """As few rounds as can be, rounds of one size everywhere (or nearly so, where memory is tight), those
        that taper, and those that only begin with one size."""
        most = fewest_rounds(self._graph)
        yield most
        width = min(self._live)
        is_tight = self._best is None
        yield (in_sizes(self._units, width),) * len(most)
        if is_tight:
            # One stage of few workers would make the rounds of all others as small.
            for size in sorted(set(self._live))[1:-1]:
                yield tuple(in_sizes(self._units, min(size, workers)) for workers in self._live)
        self._is_few = bool(self._good)
        longest = max(map(len, most))
        for more in (1, 2, 4, longest) if self._effort.rounds else (2,):
            yield tuple(_tapered(self._units, workers, width, more, longest) for workers in self._live)
        for eighth in (1, 2, 3, 4, 6) if self._effort.rounds else ():
            begin = self._units * eighth // 8 // width
            rest = self._units - begin * width
            yield tuple((width,) * begin + in_sizes(rest, workers) for workers in self._live)

    def _vary(self) -> None:
        """Another size on one chunk, or on all from one on, as long as that is better."""
        assert self._best is not None
        before = None
        while self._best is not before:
            before = self._best
            for chunk, sizes in self._options():
                shape = self._best.shape
                self._try((*shape[:chunk], sizes, *shape[chunk + 1 :]))
                if self._is_done():
                    return

    def _options(self) -> list[tuple[int, Sizes]]:
        width = min(self._live)
        longest = -(-self._units // width)
        found = [
            (chunk, sizes)
            for chunk, workers in enumerate(self._live)
            for size in range(width, workers + 1)
            for sizes in (in_sizes(self._units, size), _tapered(self._units, size, width, 2, longest))
        ]
        return list(dict.fromkeys(found))

    def _is_done(self) -> bool:
        return (self._best is not None and self._best.timed.period <= self._enough) or self._budget.is_spent()

    def _try(self, shape: Shape) -> None:
        """Time rounds of these sizes, by all rules first, then by those that were good."""
        if shape in self._seen:
            return
        self._seen.add(shape)
        clock = RoundsClock(rounds_problem(self._graph, shape))
        every = islice(_rules(clock.problem), 0, None, 1 if self._effort.rounds else _FEW)
        found: list[tuple[TimedRounds, Rule]] = []
        seen: set[bytes] = set()
        for rule in self._good if self._is_few else every:
            order = clock.place(rule)
            self._budget.spend(Visits.RULE * clock.problem.ops)
            if order is None or order.tobytes() in seen:
                continue
            seen.add(order.tobytes())
            most = None if self._best is None else self._best.timed.period * self._near // 100
            timed = clock.time(order, most)
            if timed is not None:
                found.append((timed, rule))
            if timed is not None and timed.period <= self._enough:
                break
        if not found:
            return
        found.sort(key=_by_rank)
        if not self._is_few:
            best = [rule for _, rule in found[:_GOOD]]
            self._good += [rule for rule in best if rule not in self._good]
        self.found.append(_Found(shape, clock, *found[0]))
        self._best = min(self.found, key=_period_of)


def _by_rank(entry: tuple[TimedRounds, Rule]) -> tuple[int, int]:
    return entry[0].rank


def _tapered(units: int, workers: int, width: int, more: int, longest: int) -> Sizes:
    """Rounds of all workers between others of this width, up to so many on either side, as long as the chunk
    then has no more rounds than that with most."""
    if workers == width:
        return in_sizes(units, width)
    for ends in range(more, 0, -1):
        inner = units - 2 * ends * width
        if inner > 0 and 2 * ends + -(-inner // workers) <= longest:
            return (width,) * ends + in_sizes(inner, workers) + (width,) * ends
    return in_sizes(units, workers)


def _compositions(units: int, most: int) -> Iterator[Sizes]:
    """Numbers from 1 to `most` in a row that make so many together, the longer ones last."""
    if units == 0:
        yield ()
    for first in range(min(units, most), 0, -1):
        for rest in _compositions(units - first, most):
            yield (first, *rest)


def _tuned_among(found: list[_Found], enough: int, options: SolverOptions, budget: Budget) -> list[_Found]:
    """All of them, the best of which are tuned: many a little, few for long."""
    known = {each.shape: each for each in found}
    for count, changes in _TUNED:
        for each in sorted(known.values(), key=_period_of)[:count]:
            known[each.shape] = _tuned(each, enough, changes, options, budget)
    return sorted(known.values(), key=_period_of)


def _tuned(found: _Found, enough: int, changes: int, options: SolverOptions, budget: Budget) -> _Found:
    """The same with another rule on some stages next to each other, as long as that helps."""
    clock, noise, best = found.clock, Noise(options.seed * _MOST_TRIES + changes), found
    room = clock.problem.capacity // np.maximum(1, clock.problem.takes[clock.problem.part == 0])
    rounds = int(np.diff(clock.problem.first).max())
    most = [rounds if holdable < 0 else int(holdable) for holdable in room.tolist()]
    back = int(clock.problem.duration.max())
    for _ in range(changes):
        if best.timed.period <= enough or budget.is_spent():
            break
        rule = _changed(best.rule, most, back, noise)
        order = clock.place(rule)
        budget.spend(2 * Visits.RULE * clock.problem.ops)
        timed = None if order is None else clock.time(order, best.timed.period)
        if timed is not None and timed.rank <= best.timed.rank:
            best = best._replace(timed=timed, rule=rule)
    return best


def _changed(rule: Rule, most: list[int], longest: int, noise: Noise) -> Rule:
    """The rule with another value of one of its kinds on some stages."""
    machines = len(most)
    first, count = noise.below(machines), 1 + noise.below(max(1, machines // 2))
    chosen = range(first, min(machines, first + count))
    kind = noise.below(8)
    if kind == 0:
        return rule._replace(patience=longest * noise.below(5) // 2)
    if kind == 1:
        flipped = (1 - each if stage in chosen else each for stage, each in enumerate(rule.forward_first))
        return rule._replace(forward_first=tuple(flipped))
    tuned = (rule.ahead, rule.defer)[kind % 2]
    values = [min(each, limit) for each, limit in zip(tuned, most, strict=True)]
    step = (-2, -1, 1, 2)[noise.below(4)]
    for stage in chosen:
        values[stage] = max(1 - kind % 2, min(most[stage], values[stage] + step))
    return rule._replace(**{("ahead", "defer")[kind % 2]: tuple(values)})


def _improved_among(
    found: list[_Found], enough: int, options: SolverOptions, effort: Effort, budget: Budget
) -> _Found:
    """The best after moves of single rounds, with several seeds; of a small plan of several shapes."""
    found = sorted(found, key=_period_of)
    if effort.rounds and not found[0].clock.is_compiled:
        few = [_improved(each, enough, options, effort, budget, 0, part=2) for each in found[:_MOVED]]
        found = sorted(few, key=_period_of)
    best = found[0]
    for seed in range(_SEEDS if effort.rounds else 1):
        if best.timed.period <= enough or budget.is_spent():
            break
        best = _improved(best, enough, options, effort, budget, seed)
    return best


def _improved(
    found: _Found,
    enough: int,
    options: SolverOptions,
    effort: Effort,
    budget: Budget,
    seed: int,
    part: int = 1,
) -> _Found:
    """Its best after moves of single rounds, the whole number of them or a part."""
    clock, ops = found.clock, found.clock.problem.ops
    moves = effort.compiled_op_moves if clock.is_compiled else effort.op_moves
    tries = min(_MOST_TRIES, moves * _MOVES // ops) // part
    budget.spend(Visits.MOVE * ops * tries)
    return found._replace(timed=clock.improved(found.timed, enough, tries, options.seed * _SEEDS + seed))


def _rules(problem: RoundsProblem) -> Iterator[Rule]:
    """Rules: how far a machine runs ahead, how many weights it puts off, what it would rather do, and whether
    it waits for that."""
    machines = problem.machines
    back = problem.duration[problem.part == 1]
    same = (1,) * machines
    for more, defer, first, patience in product(
        (0, 1, 2, machines, NO_LIMIT), (NO_LIMIT, 0, 1, 2), (0, 1), (0, int(back.max()) // 2)
    ):
        ahead = tuple(min(NO_LIMIT, machines - stage + more) for stage in range(machines))
        yield Rule(ahead, (defer,) * machines, tuple(first * one for one in same), patience)


def _schedule(graph: Graph, found: _Found, bound: Bound, *, cut_short: bool) -> Schedule:
    """Times put on the ops of the graph, with the reductions and steps that they lead to."""
    graph = in_rounds(graph, found.shape)
    timed = found.timed
    job, keep = graph.job, graph.ops.kind != OpKind.S
    ops, op = graph.ops.take(keep), rounds_problem(graph, found.shape).op_of_row[keep]
    work = op != UNSET
    ops = replace(ops, duration=np.where(work, found.clock.costs(timed.order)[op], ops.duration))
    start = timed.end[op] - ops.duration
    ends = start + ops.duration
    stage = ops.worker // job.pipelines
    last = np.zeros(job.stages, dtype=np.int64)
    np.maximum.at(last, stage[work], ends[work])
    if not job.techniques.stagger:
        last[:] = last.max()
    start[~work] = finish_starts(ops, last[stage])
    makespan = int(ends[work].max() - start[work].min())
    order = schedule_order(ops, start)
    claims = Claims(makespan, timed.period, bound.period, bound.reason, cut_short)
    return Schedule(job, graph.failed, ops.take(order), start[order], timed.release, claims)
