"""The schedule of a large plan: list scheduling by a greedy rule that is tuned to the plan, then exchanges.

A few settings that have proven good come first, then changes of the best one by chance: what is best differs
from plan to plan, and neighbours of a good setting are good more often than others. Then, in rounds that
begin with different settings, some chunks at a time get values of their own, and at the end of a round ops
that are late change places with the op before them (`exchanges.py`). Going on for longer in one round helps
less than beginning again.

Where rules alone are not enough, the best few schedules first go back and forth in time (`mirror.py`), with
exchanges after each turn, and the one that gets furthest goes on. Where two rounds are not enough, timetables
(`timetable.py`) are tried, with routes of their own. If they come to something shorter, all further rounds
begin with them.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

from recycle_compiler.scheduling.budget import Budget, Goal, Noise, Sizes, Visits
from recycle_compiler.scheduling.exchanges import (
    Placed,
    exchange,
    placed_by_rule,
    placed_in_order,
    polished,
)
from recycle_compiler.scheduling.few_pipelines import few_pipelines, lifted
from recycle_compiler.scheduling.flow import flow_cycles, flow_priority
from recycle_compiler.scheduling.inner_loops import BACKWARD, WEIGHT
from recycle_compiler.scheduling.mirror import Mirror, can_be_mirrored
from recycle_compiler.scheduling.order_search import search_at_length
from recycle_compiler.scheduling.problem import Ints, Problem
from recycle_compiler.scheduling.rules import (
    NO_LIMIT,
    GreedyRule,
    RuleSetting,
    free_rule,
    greedy_priority,
    rule_of,
)
from recycle_compiler.scheduling.timetable import can_have_timetable, timetable
from recycle_compiler.scheduling.timing import Clock, Proposal, Timed

FIRST_SETTINGS = (
    RuleSetting(depth=(0, 0), patience=(10, 60), patience_at_end=30),
    RuleSetting(depth=(1, 0), patience=(30, 60), patience_at_end=60),
    RuleSetting(depth=(0, 0), patience=(20, 30), patience_at_end=60),
    RuleSetting(depth=(1, 0), patience=(15, 60), patience_at_end=15),
    RuleSetting(depth=(1, 0), patience=(40, 60), patience_at_end=60),
    RuleSetting(),
    RuleSetting(depth=(1, 0), patience=(30, 15), patience_at_end=60),
    RuleSetting(depth=(2, 0), patience=(5, 30), patience_at_end=60, burst=12),
    RuleSetting(depth=(1, 1), patience=(30, 15), patience_at_end=15, burst=75, ahead=3),
    RuleSetting(depth=(1, 0), patience=(20, 60), patience_at_end=60, burst=75, ahead=3),
)
"""Each is the best for some plan: the first for few failures, the next ones for many."""
_DEPTHS = ((1, 0), (0, 0), (2, 0), (1, 1), (0, 1), (1, -1), (0, -1), (2, 2))
_BURSTS = (0, 6, 12, 25, 37, 50, 75, 100)
_AHEAD = (3, 6, 8, NO_LIMIT)
_SPANS = (1, 1, 2, 3, 5, 8)
"""Numbers of chunks that are changed together."""
_ALIGNED = 60
"""Percent of the changes that take in all chunks of a run that has equally many workers."""
_FLOW_PATIENCES = (0, 50, 75)
_DEFERRALS = (80, 100, 0)
"""W are deferred in them by so many percent of what memory allows; plans of many ops have the first only, and
so have timetables."""
_ANEW = 2
"""Rounds after which other settings are drawn: the first begins with the best, the next with a flow."""
_FOR_FEW = 150_000_000
"""Visits for a few pipelines in place of all, beside those that the plan has: one of the plans of a job, that
without failures, mostly is the only one."""
_FAR_FLOW = 150
"""A flow is worth a round if it misses the aim by no more than this percentage of what rules miss."""
_SHIFTS = (1, 2, 4, 8, 16)
"""In quarters of a cycle."""
_PUSHES = (50, 70, 90)
"""Patience of placing ops backwards in time, in percent, turn by turn."""
_PULLS = (50, 65, 80)
"""Patience of placing ops forwards again, likewise."""
_LANES = 4
"""Beginnings that go back and forth in time beside each other, until the worse half of them is left out."""
_OF_LANES = (3, 2)
"""Turns back and forth in time until then, and exchanges after each of them."""
_OF_LAST = (100, 2)
"""Turns of the one that is left, and exchanges after each."""
_FAR_PUSHED = 85
"""Percentage of the distance to the aim; all turns end with the first ones if more of it is left."""
_REROUTED = 2
"""Rounds with other routes."""
_FAR_ROUTES = 102
"""They are worth it if rules miss the aim there by no more than this percentage of what they miss usually."""
_PACES = (1000, 930, 980, 850, 900, 960, 995, 1005, 1010)
"""Paces of timetables, in thousandths of what workers and memory allow on average."""
_PROBES = 3
"""Paces after which no others are tried if timetables are far from the aim."""
_FAR_PROBES = 250
"""Percentage of the rules' distance to the aim beyond which a timetable counts as far from the aim."""
_TIMETABLE_PATIENCES = (50, 75, 100)
"""The last one is not for plans of many ops."""
_KEPT_OF_PACE = 2
"""Of the schedules that come of one pace, by different patience."""
_FAR_TIMETABLE = 150
"""A timetable is worth rounds if it misses the aim by no more than this percentage of what rules miss."""
_TIMETABLE_ROUNDS = (4, 2)
"""In most plans, and in costly ones, where the third and the fourth come to nothing shorter."""
_WORTH_ROUTES = 500
"""Its routes are taken if the period is shorter by one part in so many: healthy workers give up their own."""
_NEAR = (8, 4)
"""Single ops are moved where a period is so many times as far from the aim as one that is enough: in most
plans, and in those of many ops."""
_FAR_AWAY = 6
"""Multiple of the distance from aim to enough; a large plan further from the aim is hopeless."""
_HOPEFUL = 2
"""Rounds after which tuning of a hopeless plan ends: more would not make it good enough."""
_KEPT = 8
"""Of the rules that were tried, so many stay in memory."""
_IDLE_TRIES = 200
"""Changes in a row that lead to nothing new, before tuning ends."""


class Tuning(NamedTuple):
    """Limits of the work on a large plan."""

    settings: int
    """Rules to try first, the same for all chunks."""
    rounds: int
    """Number of times that the rest is done."""
    changes: int
    """Rules to try in a round, with other values for some chunks."""
    exchanges: int
    """Orders to try at the end of a round."""
    other_routes: bool = True
    """True if timetables, which choose routes of their own, may be tried."""
    few_pipelines: bool = True
    """True if a few pipelines may be searched in place of all."""

    @property
    def is_patient(self) -> bool:
        """True if more may follow where few rounds do not come to what is enough."""
        return self.rounds >= _ANEW


class _Tried(NamedTuple):
    placed: Placed
    rule: GreedyRule
    priority: Ints
    is_flow: bool = False


class _Lane(NamedTuple):
    """A schedule that goes back and forth in time."""

    best: Placed
    current: Placed


class _ByRules(NamedTuple):
    """Periods that rules have come to."""

    begun: int
    """Before their rounds."""
    tuned: int


class _Begin(NamedTuple):
    """Start of a round with routes of its own."""

    tuner: "_Tuner"
    tried: _Tried

    @property
    def rank(self) -> tuple[int, int]:
        return self.tried.placed.rank


def tune(clock: Clock, goal: Goal, effort: Tuning, noise: Noise, budget: Budget) -> Proposal:
    """The best schedule found; stops when one is good enough."""
    tuner = _Tuner(clock, goal, noise, budget)
    best: list[Placed] = []
    moved: list[Proposal] = []
    begins: list[_Tried] = []
    for turn in range(max(1, effort.rounds)):
        if turn % _ANEW == 0:
            begins = tuner.begins(effort, turn // _ANEW)
            assert begins, "no rule finds an order that obeys every edge"
            # One for each start: what is best of all may have been moved before.
            best.append(begins[0].placed)
        begin = begins[turn % _ANEW % len(begins)]
        best[-1] = min(best[-1], begin.placed, key=_rank)
        if turn == 0 and effort.is_patient:
            best[-1] = tuner.back_and_forth([tried.placed for tried in begins])
        if tuner.is_done(best[-1].period) or effort.rounds == 0:
            break
        found = tuner.changes(begin, effort.changes)
        found = exchange(clock, found, goal, effort.exchanges, noise, budget)
        best[-1] = min(best[-1], found, key=_rank)
        period = min(best, key=_rank).period
        if turn + 1 == _HOPEFUL and effort.is_patient and effort.other_routes and period > goal.enough:
            by_rules = _ByRules(begins[0].placed.period, period)
            others = tune_by_timetable(clock, by_rules, goal, effort, noise.aside(), budget)
            if others and min(each.timed.period for each in others) < period - period // _WORTH_ROUTES:
                return min(others, key=_rank_of)
        if turn + 1 >= _HOPEFUL and _is_hopeless(clock.problem, period, goal):
            break
        if (turn + 1) % _ANEW == 0 and _is_near(clock.problem, best[-1].period, goal):
            order = best[-1].order
            moved.append(Proposal(clock, polished(clock, order, goal, effort.exchanges, noise, budget)))
            if moved[-1].timed.period <= goal.enough:
                break
    timed = clock.time(min(best, key=_rank).order)
    assert timed is not None
    return min([Proposal(clock, timed), *moved], key=_rank_of)


def _rank_of(found: Proposal) -> tuple[int, int]:
    return found.timed.rank


def tune_elsewhere(
    usual: Clock, other: Clock, goal: Goal, effort: Tuning, noise: Noise, budget: Budget
) -> Timed | None:
    """The best schedule of a few rounds with other routes; None where rules do worse there than usually."""
    few = min(effort.settings, len(FIRST_SETTINGS))
    least = _Tuner(usual, goal, noise, budget).settings(few)[0].placed.period
    tuner = _Tuner(other, goal, noise, budget)
    begins = tuner.settings(few)
    most = goal.aim + (least - goal.aim) * _FAR_ROUTES // 100
    if not begins or begins[0].placed.period > most:
        return None
    best = begins[0].placed
    for begin in begins[:_REROUTED]:
        if tuner.is_done(best.period):
            break
        found = exchange(other, tuner.changes(begin, effort.changes), goal, effort.exchanges, noise, budget)
        best = min(best, found, key=_rank)
    if best.period <= goal.enough or _is_near(other.problem, best.period, goal):
        return polished(other, best.order, goal, effort.exchanges, noise, budget)
    return other.time(best.order)


def tune_by_timetable(
    usual: Clock, by_rules: _ByRules, goal: Goal, effort: Tuning, noise: Noise, budget: Budget
) -> list[Proposal]:
    """The schedules of some rounds that begin with timetables, as long as they are ahead of rules; none where
    timetables are far behind what rules come to before their rounds."""
    if not can_have_timetable(usual.problem) or not budget.has("timetables"):
        return []
    begins: list[_Begin] = []
    patiences = _TIMETABLE_PATIENCES[:-1] if usual.problem.ops > Sizes.HUGE else _TIMETABLE_PATIENCES
    for number, pace in enumerate(_PACES):
        budget.spend(Visits.TIMETABLE * usual.problem.ops)
        found = timetable(usual.problem, pace, goal.aim)
        tuner = _Tuner(Clock(found.problem), goal, noise, budget)
        tried = tuner.by_times(found.priority(_DEFERRALS[0]), patiences)
        begins += [_Begin(tuner, one) for one in tried[:_KEPT_OF_PACE]]
        begins.sort(key=lambda begin: begin.rank)
        del begins[_TIMETABLE_ROUNDS[usual.problem.ops >= Sizes.LARGE] :]
        far = _FAR_PROBES if number + 1 < len(_PACES) else _FAR_TIMETABLE
        is_far = (
            not begins or begins[0].tried.placed.period > goal.aim + (by_rules.begun - goal.aim) * far // 100
        )
        if budget.is_spent() or (is_far and number + 1 >= _PROBES):
            return []
        if begins and begins[0].tried.placed.period <= goal.enough:
            break
    rounds: list[Proposal] = []
    for tuner, begin in begins:
        rounds.append(Proposal(tuner.clock, tuner.round(begin, effort)))
        period = min(each.timed.period for each in rounds)
        if tuner.is_done(period) or period >= by_rules.tuned or usual.problem.ops > Sizes.HUGE:
            break
    return rounds


class _Tuner:
    """Tries rules for one problem."""

    def __init__(self, clock: Clock, goal: Goal, noise: Noise, budget: Budget) -> None:
        self.clock = clock
        self._goal = goal
        self._noise = noise
        self._budget = budget
        self._priorities = [greedy_priority(clock.problem, last_first) for last_first in (False, True)]
        self._runs = _runs(clock.problem)
        self._cycles = flow_cycles(clock.problem)
        self._flows: list[_Tried] | None = None

    def is_done(self, period: int) -> bool:
        return period <= self._goal.enough or self._budget.is_spent()

    def settings(self, most: int) -> list[_Tried]:
        """Rules with the same values for all chunks, best first; of those that come to the same, one."""
        found: dict[tuple[int, int], _Tried] = {}
        settings: dict[tuple[int, int], RuleSetting] = {}
        for setting in _next_settings(lambda: settings[min(settings)], most, self._noise):
            rule = rule_of(self.clock.problem, setting)
            tried = self._try(rule, self._priorities[setting.last_first])
            if tried is None:
                continue
            found.setdefault(tried.placed.rank, tried)
            settings.setdefault(tried.placed.rank, setting)
            if len(found) > _KEPT:
                del found[max(found)]
            if self.is_done(min(found)[0]):
                break
        return [found[rank] for rank in sorted(found)]

    def changes(self, begin: _Tried, most: int) -> Placed:
        """The best that comes of changing some chunks at a time; what is no worse is kept."""
        best = begin
        for _ in range(most if self._budget.has("changes") else 0):
            if self.is_done(best.placed.period):
                break
            tried = self._try(*self._changed(best))
            if tried is not None and tried.placed.rank <= best.placed.rank:
                best = tried
        return best.placed

    def begins(self, effort: Tuning, number: int) -> list[_Tried]:
        """Starts of the next rounds: the best of other settings than before, and then a flow, the best one of
        all or, with a higher number, the one after so many others."""
        is_due = effort.is_patient and effort.few_pipelines and number == 0
        is_large = self.clock.problem.ops >= Sizes.LARGE
        # A few pipelines take less time than the first rules, if there are many.
        found = self.lifted(effort) if is_due and is_large else []
        if not found or not self.is_done(found[0].placed.period):
            found += self.settings(effort.settings)
        if is_due and not is_large and found and not self.is_done(found[0].placed.period):
            found += self.lifted(effort)
        found.sort(key=lambda tried: tried.placed.rank)
        if not effort.is_patient or not found or self.is_done(found[0].placed.period):
            return found
        flows = self.flows(found[0].placed.period)
        return [found[0], *([flows[number % len(flows)]] if flows else []), *found[1:]]

    def lifted(self, effort: Tuning) -> list[_Tried]:
        """The times of a few pipelines, searched at length, in place of a rule."""
        problem = few_pipelines(self.clock.problem) if self._budget.has("few pipelines") else None
        if problem is None:
            return []
        clock, goal, noise = Clock(problem, compiled=True), self._goal, self._noise.aside()
        budget = self._budget.beside(_FOR_FEW)
        tuned = tune(clock, goal, effort._replace(other_routes=False, few_pipelines=False), noise, budget)
        found = search_at_length(clock, tuned.timed, goal, noise, budget)
        start = lifted(self.clock.problem, problem, found.start)
        tries = self.by_times(start, _TIMETABLE_PATIENCES)
        placed = placed_in_order(self.clock, self.clock.order_of(start), goal)
        if tries and placed is not None and placed.rank < tries[0].placed.rank:
            tries[0] = tries[0]._replace(placed=placed)
        return tries

    def flows(self, period: int) -> list[_Tried]:
        """Rules that do what an even flow does, best first; none that is far from a period found already."""
        if not self._budget.has("flows"):
            return []
        if self._flows is None:
            self._flows = self._all_flows()
        most = self._goal.aim + (period - self._goal.aim) * _FAR_FLOW // 100
        return [one for one in self._flows if one.placed.period <= most]

    def _all_flows(self) -> list[_Tried]:
        many = self.clock.problem.ops > Sizes.HUGE
        ways = product((True, False), _DEFERRALS[:1] if many else _DEFERRALS)
        priorities = (flow_priority(self.clock.problem, *way) for way in ways)
        tries = [one for priority in priorities for one in self.by_times(priority, _FLOW_PATIENCES)[:1]]
        return sorted(tries, key=lambda tried: tried.placed.rank)

    def back_and_forth(self, begins: list[Placed]) -> Placed:
        """The best that comes of placing ops backwards in time, then forwards again, and exchanges.

        Which beginning leads furthest shows after a few turns, so the best ones have as many, then the better
        half of them as many more, and so on; the last one goes on for longer.
        """
        lanes = [_Lane(begin, begin) for begin in sorted(begins, key=_rank)[:_LANES]]
        first = lanes[0].best
        if self.is_done(first.period) or not self._budget.has("mirror"):
            return first
        if not can_be_mirrored(self.clock.problem):
            return first
        far = self._goal.aim + (first.period - self._goal.aim) * _FAR_PUSHED // 100
        turn = 0
        while True:
            turns, tries = _OF_LANES if len(lanes) > 1 else _OF_LAST
            for number, lane in enumerate(lanes):
                lanes[number] = self._turns(lane, turn, turns, tries)
                if self.is_done(lanes[number].best.period):
                    break
            lanes.sort(key=_rank_of_lane)
            best = lanes[0].best
            if len(lanes) == 1 or self.is_done(best.period) or best.period > far:
                return best
            turn += turns
            del lanes[(len(lanes) + 1) // 2 :]

    def _turns(self, lane: "_Lane", begun: int, turns: int, tries: int) -> "_Lane":
        """The lane after so many more turns."""
        clock, (best, current) = self.clock, lane
        mirror = Mirror(clock.problem, clock.deadlines(current.first, current.period))
        for turn in range(begun, begun + turns):
            if self.is_done(best.period):
                break
            self._budget.spend(Visits.RULE * clock.problem.ops)
            starts = mirror.pushed_back(current.end, _PUSHES[turn % len(_PUSHES)])
            tried = [] if starts is None else self.by_times(starts, (_PULLS[turn % len(_PULLS)],))
            if not tried:
                break
            current = exchange(clock, tried[0].placed, self._goal, tries, self._noise, self._budget)
            best = min(best, current, key=_rank)
        return _Lane(best, current)

    def by_times(self, priority: Ints, patiences: tuple[int, ...]) -> list[_Tried]:
        """Orders whose ops start as near to these times as they can, best first."""
        rules = (free_rule(self.clock.problem, patience) for patience in patiences)
        tries = (self._try(rule, priority, is_flow=True) for rule in rules)
        return sorted((one for one in tries if one is not None), key=lambda tried: tried.placed.rank)

    def round(self, begin: _Tried, effort: Tuning) -> Timed:
        """Changes, exchanges and, where that is near enough, moves of single ops."""
        found = self.changes(begin, effort.changes)
        found = exchange(self.clock, found, self._goal, effort.exchanges, self._noise, self._budget)
        if _is_near(self.clock.problem, found.period, self._goal):
            tries = effort.exchanges
            return polished(self.clock, found.order, self._goal, tries, self._noise, self._budget)
        timed = self.clock.time(found.order)
        assert timed is not None
        return timed

    def _try(self, rule: GreedyRule, priority: Ints, is_flow: bool = False) -> _Tried | None:
        self._budget.spend(Visits.RULE * self.clock.problem.ops)
        placed = placed_by_rule(self.clock, priority, rule, self._goal)
        return None if placed is None else _Tried(placed, rule, priority, is_flow)

    def _changed(self, tried: _Tried) -> tuple[GreedyRule, Ints, bool]:
        """The rule for some chunks is another one, or in a flow some backwards or W have another time."""
        if tried.is_flow and self._noise.below(2):
            return tried.rule, self._shifted(tried.priority), True
        return self._changed_chunks(tried.rule), tried.priority, tried.is_flow

    def _shifted(self, priority: Ints) -> Ints:
        noise, chunks = self._noise, self._chunks(max(1, self.clock.problem.chunks // 16))
        kind = (BACKWARD, WEIGHT)[noise.below(2)]
        quarters = _SHIFTS[noise.below(len(_SHIFTS))] * (1 - 2 * noise.below(2))
        shifted = priority.copy()
        shifted[kind, :, chunks] += self._cycles[chunks] * quarters // 4
        return shifted

    def _changed_chunks(self, rule: GreedyRule) -> GreedyRule:
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
        first = noise.below(self.clock.problem.chunks)
        return slice(first, first + step * _SPANS[noise.below(len(_SPANS))])


def _is_hopeless(problem: Problem, period: int, goal: Goal) -> bool:
    far = goal.times_as_far(_FAR_AWAY)
    return problem.ops >= Sizes.LARGE and goal.aim < goal.enough and period > far


def _is_near(problem: Problem, period: int, goal: Goal) -> bool:
    """True if a period is not good enough, but so near that single ops are worth moving."""
    return goal.enough < period <= goal.times_as_far(_NEAR[problem.ops > Sizes.HUGE])


def _rank(placed: Placed) -> tuple[int, int]:
    return placed.rank


def _rank_of_lane(lane: _Lane) -> tuple[int, int]:
    return lane.best.rank


def _runs(problem: Problem) -> list[range]:
    """Chunks next to each other that have equally many workers."""
    live = [len(hosts) for hosts in problem.hosts]
    starts = [chunk for chunk in range(problem.chunks) if chunk == 0 or live[chunk] != live[chunk - 1]]
    return [range(first, last) for first, last in zip(starts, [*starts[1:], problem.chunks], strict=True)]


def _next_settings(chosen: Callable[[], RuleSetting], most: int, noise: Noise) -> Iterator[RuleSetting]:
    """Settings not seen before: the first ones, then changes of what is best by then."""
    seen = set(FIRST_SETTINGS[:most])
    yield from FIRST_SETTINGS[:most]
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


def _changed(setting: RuleSetting, noise: Noise) -> RuleSetting:
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
