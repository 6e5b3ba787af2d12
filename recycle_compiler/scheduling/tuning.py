"""The schedule of a large plan: list scheduling by a greedy rule that is tuned to the plan, then exchanges.

A few settings that have proven good come first, then changes of the best one by chance: what is best differs
from plan to plan, and neighbours of a good setting are good more often than others. Then, in rounds that
begin with different settings, some chunks at a time get values of their own, and at the end of a round ops
that are late change places with the op before them. Going on for longer in one round helps less than
beginning anew.

Exchanges ask for a shorter period, which gives every op a latest start. Where an op misses its own because
its worker does something less urgent just before (a W, as a rule, while a backward that others wait for
arrives), the two are swapped. All such swaps are made at once, then the new order is timed. When that is no
better, the next try asks for another period, for other gains, or looks only at some pools or at the later
part of the iteration.

Schedules are compared with all windows open from the start, which is cheap to make.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recycle_compiler.scheduling.budget import Deadline, Goal, Noise
from recycle_compiler.scheduling.flow import flow_cycles, flow_priority
from recycle_compiler.scheduling.inner_loops import BACKWARD, FAR, WEIGHT
from recycle_compiler.scheduling.loops import Where
from recycle_compiler.scheduling.order_search import reorder
from recycle_compiler.scheduling.problem import Ints, Problem
from recycle_compiler.scheduling.rules import NO_LIMIT, Rule, Setting, free_rule, greedy_priority, rule_of
from recycle_compiler.scheduling.timing import Clock, Timed


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An order with its times."""

    period: int
    lateness: int
    """By how much all workers together miss what the search aims at."""
    order: Ints
    end: Ints
    first: Ints
    """When each pool starts, as `Clock` counts it."""

    @property
    def rank(self) -> tuple[int, int]:
        return self.period, self.lateness


def placed_by_rule(clock: Clock, priority: Ints, rule: Rule, goal: Goal) -> Placed | None:
    """What list scheduling makes of a rule; None where it finds no way on."""
    found = clock.loops.schedule(priority, rule)
    return None if found is None else _placed(clock, *found, goal)


def placed_in_order(clock: Clock, order: Ints, goal: Goal) -> Placed | None:
    """The order with its earliest times; None if its workers wait for each other."""
    timed = clock.loops.timed(order, clock.loops.unopened)
    return None if timed is None else _placed(clock, order, *timed, goal)


def _placed(clock: Clock, order: Ints, end: Ints, worker_end: Ints, goal: Goal) -> Placed:
    first_ops, pool_of = order[:: clock.loops.width], clock.loops.pool_of
    begins = end[first_ops] - clock.loops.duration[first_ops] - clock.loops.late
    starts = np.where(first_ops >= 0, begins, FAR)
    first, last = np.full(clock.problem.pools, FAR), np.zeros(clock.problem.pools, dtype=np.int64)
    np.minimum.at(first, pool_of, starts)
    np.maximum.at(last, pool_of, worker_end)
    late = worker_end - clock.deadlines(first, goal.aim)[pool_of]
    return Placed(clock.period(first, last), int(np.maximum(late, 0).sum()), order, end, first)


_STEPS = 64
"""Choices out of a range of times."""
_BELOW = 200
"""The shortest period asked for is this part below the one that is aimed at."""


def exchange(clock: Clock, begin: Placed, goal: Goal, tries: int, noise: Noise, deadline: Deadline) -> Placed:
    """The best schedule found in so many tries; stops when one is good enough."""
    current, failed, wanted = begin, 0, goal.aim
    times = _latest(clock, current, wanted)
    for _ in range(tries):
        if current.period <= goal.enough or deadline.passed():
            break
        if failed:
            if noise.below(3):
                reach = current.period - goal.aim + current.period // _BELOW
                wanted = current.period - reach * noise.below(_STEPS) // _STEPS
                times = _latest(clock, current, wanted)
            where = _somewhere(clock, current.period, noise)
        else:
            where = Where(0, clock.problem.pools - 1, gain=_mean_op(clock) // 8)
        order = clock.loops.swapped(current.order, times, where)
        after = None if order is None else placed_in_order(clock, order, goal)
        failed += 1
        if after is None or after.rank > current.rank:
            continue
        if after.rank < current.rank:
            failed, wanted = 0, goal.aim
        current = after
        times = _latest(clock, current, wanted)
    return current


def _somewhere(clock: Clock, period: int, noise: Noise) -> Where:
    first, last = 0, clock.problem.pools - 1
    if noise.below(2):
        first = noise.below(clock.problem.pools)
        last = min(last, first + noise.below(clock.problem.pools // 2 + 1))
    return Where(
        first,
        last,
        since=noise.below(2) * period * noise.below(_STEPS) // _STEPS,
        gain=noise.below(4) * _mean_op(clock) // 16,
        odds=(100, 60)[noise.below(2)],
        seed=noise.below(1 << 30),
    )


def _latest(clock: Clock, placed: Placed, period: int) -> tuple[Ints, Ints, Ints]:
    late, due = clock.loops.latest(placed.order, clock.deadlines(placed.first, period))
    return placed.end, due, late


def _mean_op(clock: Clock) -> int:
    return int(clock.loops.duration.mean())


_FIRST = (
    Setting(depth=(0, 0), patience=(10, 60), patience_at_end=30),
    Setting(depth=(1, 0), patience=(30, 60), patience_at_end=60),
    Setting(depth=(0, 0), patience=(20, 30), patience_at_end=60),
    Setting(depth=(1, 0), patience=(15, 60), patience_at_end=15),
    Setting(depth=(1, 0), patience=(40, 60), patience_at_end=60),
    Setting(),
    Setting(depth=(1, 0), patience=(30, 15), patience_at_end=60),
    Setting(depth=(2, 0), patience=(5, 30), patience_at_end=60, burst=12),
    Setting(depth=(1, 1), patience=(30, 15), patience_at_end=15, burst=75, ahead=3),
    Setting(depth=(1, 0), patience=(20, 60), patience_at_end=60, burst=75, ahead=3),
)
"""Each is the best for some plan: the first for few failures, the next ones for many."""
_DEPTHS = ((1, 0), (0, 0), (2, 0), (1, 1), (0, 1), (1, -1), (0, -1), (2, 2))
_BURSTS = (0, 6, 12, 25, 37, 50, 75, 100)
_AHEAD = (3, 6, 8, NO_LIMIT)
_SPANS = (1, 1, 2, 3, 5, 8)
"""How many chunks are changed together."""
_ALIGNED = 60
"""Percent of the changes that take in all chunks of a run that has equally many workers."""
_FLOW_PATIENCES = (0, 50, 100)
_ANEW = 2
"""Rounds after which other settings are drawn: the first begins with the best of them, the next with a
flow."""
_DRAWN = 40
"""Settings that are tried then; many plans are done before, so the first ones are fewer ..."""
_CHEAP = 5_000
"""... unless a plan has no more ops than this."""
_FAR_FLOW = 150
"""A flow is worth a round if it misses the aim by no more than this percentage of what rules miss."""
_SHIFTS = (1, 2, 4, 8, 16)
"""In quarters of a cycle."""
_REROUTED = 2
"""Rounds with other routes."""
_FAR_ROUTES = 102
"""They are worth it if rules miss the aim there by no more than this percentage of what they miss usually."""
_NEAR = 4
"""Single ops are moved where a period is so many times as far from the aim as one that is enough."""
_MORE = 4
"""Rounds that follow ..."""
_CLOSE = 2
"""... where a period is no further from the aim than this many times what would be enough."""
_FINEST = 60_000
"""Up to so many ops; beyond, they are not worth their time."""
_FAR_AWAY = 6
"""Where it is further away than this after some rounds, ..."""
_HOPEFUL = 2
"""... after so many, no more follow: they would not make it good enough."""
_COSTLY = 20_000
"""That is for plans of so many ops: rounds of smaller ones cost little."""
_KEPT = 8
"""Of the rules that were tried, so many stay in memory."""
_IDLE_TRIES = 200
"""Changes in a row that lead to nothing new, before tuning ends."""


class Tuning(NamedTuple):
    """How much work may go into a large plan."""

    settings: int
    """Rules to try first, the same for all chunks."""
    rounds: int
    """How often the rest is done."""
    changes: int
    """Rules to try in a round, with other values for some chunks."""
    exchanges: int
    """Orders to try at the end of a round."""


class _Tried(NamedTuple):
    placed: Placed
    rule: Rule
    priority: Ints
    is_flow: bool = False


def tune(clock: Clock, goal: Goal, effort: Tuning, noise: Noise, deadline: Deadline) -> Timed:
    """The best schedule found; stops when one is good enough."""
    tuner = _Tuner(clock, goal, noise, deadline)
    best: list[Placed] = []
    moved: list[Timed] = []
    begins: list[_Tried] = []
    for turn in range(max(1, effort.rounds + (_MORE if clock.problem.ops <= _FINEST else 0))):
        if turn % _ANEW == 0:
            is_first = turn == 0 and clock.problem.ops > _CHEAP
            begins = tuner.begins(effort, effort.settings if is_first or effort.rounds < _ANEW else _DRAWN)
            assert begins, "no rule finds an order that obeys every edge"
            # One for each start: what is best of all may have been moved before.
            best.append(begins[0].placed)
        begin = begins[turn % _ANEW % len(begins)]
        best[-1] = min(best[-1], begin.placed, key=_rank)
        if tuner.is_done(best[-1]) or effort.rounds == 0:
            break
        found = tuner.changes(begin, effort.changes)
        found = exchange(clock, found, goal, effort.exchanges, noise, deadline)
        best[-1] = min(best[-1], found, key=_rank)
        period = min(best, key=_rank).period
        if turn + 1 >= _HOPEFUL and _is_hopeless(clock.problem, period, goal):
            break
        if (turn + 1) % _ANEW == 0 and goal.enough < best[-1].period <= goal.times_as_far(_NEAR):
            moved.append(reorder(clock, best[-1].order, goal, noise, deadline))
            if moved[-1].period <= goal.enough:
                break
        if turn + 1 >= effort.rounds and period > goal.times_as_far(_CLOSE):
            break
    timed = clock.time(min(best, key=_rank).order)
    assert timed is not None
    return min([timed, *moved], key=lambda one: one.rank)


def tune_elsewhere(
    usual: Clock, other: Clock, goal: Goal, effort: Tuning, noise: Noise, deadline: Deadline
) -> Timed | None:
    """The best schedule of a few rounds with other routes; None where rules do worse there than usually."""
    few = min(effort.settings, len(_FIRST))
    least = _Tuner(usual, goal, noise, deadline).settings(few)[0].placed.period
    tuner = _Tuner(other, goal, noise, deadline)
    begins = tuner.settings(few)
    most = goal.aim + (least - goal.aim) * _FAR_ROUTES // 100
    if not begins or begins[0].placed.period > most:
        return None
    best = begins[0].placed
    for begin in begins[:_REROUTED]:
        if tuner.is_done(best):
            break
        found = exchange(other, tuner.changes(begin, effort.changes), goal, effort.exchanges, noise, deadline)
        best = min(best, found, key=_rank)
    if best.period <= goal.times_as_far(_NEAR):
        return reorder(other, best.order, goal, noise, deadline)
    return other.time(best.order)


class _Tuner:
    """Tries rules for one problem."""

    def __init__(self, clock: Clock, goal: Goal, noise: Noise, deadline: Deadline) -> None:
        self._clock = clock
        self._goal = goal
        self._noise = noise
        self._deadline = deadline
        self._priorities = [greedy_priority(clock.problem, last_first) for last_first in (False, True)]
        self._runs = _runs(clock.problem)
        self._cycles = flow_cycles(clock.problem)
        self._flows: list[_Tried] | None = None

    def is_done(self, best: Placed) -> bool:
        return best.period <= self._goal.enough or self._deadline.passed()

    def settings(self, most: int) -> list[_Tried]:
        """Rules with the same values for all chunks, best first; of those that come to the same, one."""
        found: dict[tuple[int, int], _Tried] = {}
        settings: dict[tuple[int, int], Setting] = {}
        for setting in _next_settings(lambda: settings[min(settings)], most, self._noise):
            rule = rule_of(self._clock.problem, setting)
            tried = self._try(rule, self._priorities[setting.last_first])
            if tried is None:
                continue
            found.setdefault(tried.placed.rank, tried)
            settings.setdefault(tried.placed.rank, setting)
            if len(found) > _KEPT:
                del found[max(found)]
            if self.is_done(found[min(found)].placed):
                break
        return [found[rank] for rank in sorted(found)]

    def changes(self, begin: _Tried, most: int) -> Placed:
        """The best that comes of changing some chunks at a time; what is no worse is kept."""
        best = begin
        for _ in range(most):
            if self.is_done(best.placed):
                break
            tried = self._try(*self._changed(best))
            if tried is not None and tried.placed.rank <= best.placed.rank:
                best = tried
        return best.placed

    def begins(self, effort: Tuning, settings: int) -> list[_Tried]:
        """What the next rounds begin with: the best of other settings than before, and then a flow."""
        found = self.settings(settings)
        if effort.rounds < _ANEW or not found or self.is_done(found[0].placed):
            return found
        return [found[0], *self.flows(found[0].placed.period)[:1], *found[1:]]

    def flows(self, period: int) -> list[_Tried]:
        """Rules that do what an even flow does, best first; none that is far from a period found already."""
        if self._flows is None:
            self._flows = self._all_flows()
        most = self._goal.aim + (period - self._goal.aim) * _FAR_FLOW // 100
        return [one for one in self._flows if one.placed.period <= most]

    def _all_flows(self) -> list[_Tried]:
        problem = self._clock.problem
        tries = (
            self._try(free_rule(problem, patience), priority, is_flow=True)
            for priority in (flow_priority(problem, in_turn) for in_turn in (True, False))
            for patience in _FLOW_PATIENCES
        )
        return sorted((one for one in tries if one is not None), key=lambda tried: tried.placed.rank)

    def _try(self, rule: Rule, priority: Ints, is_flow: bool = False) -> _Tried | None:
        placed = placed_by_rule(self._clock, priority, rule, self._goal)
        return None if placed is None else _Tried(placed, rule, priority, is_flow)

    def _changed(self, tried: _Tried) -> tuple[Rule, Ints, bool]:
        """The rule for some chunks is another one, or in a flow some backwards or W have another time."""
        if tried.is_flow and self._noise.below(2):
            return tried.rule, self._shifted(tried.priority), True
        return self._changed_chunks(tried.rule), tried.priority, tried.is_flow

    def _shifted(self, priority: Ints) -> Ints:
        noise, chunks = self._noise, self._chunks(max(1, self._clock.problem.chunks // 16))
        kind = (BACKWARD, WEIGHT)[noise.below(2)]
        quarters = _SHIFTS[noise.below(len(_SHIFTS))] * (1 - 2 * noise.below(2))
        shifted = priority.copy()
        shifted[kind, :, chunks] += self._cycles[chunks] * quarters // 4
        return shifted

    def _changed_chunks(self, rule: Rule) -> Rule:
        """Some chunks next to each other have another value, once or twice."""
        noise = self._noise
        # A long pipeline has more in flight everywhere, and takes longer steps.
        step = max(1, len(rule.depth) // 16)
        for _ in range(1 + noise.below(3) // 2):
            chunks = self._chunks(step)
            name = ("patience", "patience_at_end", "depth", "burst")[noise.below(4)]
            values: Ints = getattr(rule, name).copy()
            match name:
                case "depth":
                    choice = noise.below(2 * step)
                    values[chunks] += choice - step if choice < step else choice - step + 1
                case "burst":
                    values[chunks] = noise.below(8 * step + 1)
                case _:
                    values[chunks] = noise.below(90)
            rule = rule._replace(**{name: values})
        return rule

    def _chunks(self, step: int) -> slice:
        """One run or two, or any few chunks."""
        noise = self._noise
        if noise.below(100) < _ALIGNED:
            run = noise.below(len(self._runs))
            last = run if noise.below(3) else min(run + 1, len(self._runs) - 1)
            return slice(self._runs[run].start, self._runs[last].stop)
        first = noise.below(self._clock.problem.chunks)
        return slice(first, first + step * _SPANS[noise.below(len(_SPANS))])


def _is_hopeless(problem: Problem, period: int, goal: Goal) -> bool:
    return problem.ops >= _COSTLY and goal.aim < goal.enough and period > goal.times_as_far(_FAR_AWAY)


def _rank(placed: Placed) -> tuple[int, int]:
    return placed.rank


def _runs(problem: Problem) -> list[range]:
    """Chunks next to each other that have equally many workers."""
    live = [len(hosts) for hosts in problem.hosts]
    starts = [chunk for chunk in range(problem.chunks) if chunk == 0 or live[chunk] != live[chunk - 1]]
    return [range(first, last) for first, last in zip(starts, [*starts[1:], problem.chunks], strict=True)]


def _next_settings(chosen: Callable[[], Setting], most: int, noise: Noise) -> Iterator[Setting]:
    """Settings not seen before: the first ones, then changes of what is best by then."""
    seen = set(_FIRST[:most])
    yield from _FIRST[:most]
    idle = 0
    while len(seen) < most and idle < _IDLE_TRIES:
        setting = chosen()
        for _ in range(1 + noise.below(3) // 2):
            setting = _changed(setting, noise)
        idle += 1
        if setting not in seen:
            seen.add(setting)
            idle = 0
            yield setting


def _changed(setting: Setting, noise: Noise) -> Setting:
    """One of its values is another one."""
    busy, others = setting.patience
    match noise.below(7):
        case 0:
            return setting._replace(depth=_DEPTHS[noise.below(len(_DEPTHS))])
        case 1:
            return setting._replace(patience=(noise.below(60), others))
        case 2:
            return setting._replace(patience=(busy, noise.below(90)))
        case 3:
            return setting._replace(patience_at_end=noise.below(90))
        case 4:
            return setting._replace(burst=_BURSTS[noise.below(len(_BURSTS))])
        case 5:
            return setting._replace(ahead=_AHEAD[noise.below(len(_AHEAD))])
        case _:
            return setting._replace(last_first=not setting.last_first)
