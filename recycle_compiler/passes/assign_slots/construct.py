"""First schedules: list scheduling by a greedy rule, with one setting after another.

Small plans try a grid of settings. Large ones start from a few that have proven good, and then change one or
two values of the best setting so far by chance: what is best differs from plan to plan, and neighbours of a
good setting are good more often than others. Then single stages get values of their own, and in between
a search swaps neighbours in the best order.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from recycle_compiler.passes.assign_slots.deadline import Deadline
from recycle_compiler.passes.assign_slots.exchange import exchange
from recycle_compiler.passes.assign_slots.kernel import Ints
from recycle_compiler.passes.assign_slots.noise import Noise
from recycle_compiler.passes.assign_slots.rules import (
    NO_LIMIT,
    Rule,
    Setting,
    greedy_priority,
    rule_of,
    small_rules,
)
from recycle_compiler.passes.assign_slots.timing import Clock, Timed

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
"""Each is the best for some plan: the first for few losses, the next ones for many."""
_DEPTHS = ((1, 0), (0, 0), (2, 0), (1, 1), (0, 1), (1, -1), (0, -1), (2, 2))
_BURSTS = (0, 6, 12, 25, 37, 50, 75, 100)
_AHEAD = (3, 6, 8, NO_LIMIT)
_SPANS = (1, 1, 2, 3, 5, 8)
"""How many stages are changed together."""
_TURN = 40
"""Changes between two searches that swap neighbours."""
_IDLE_TRIES = 200
"""Changes in a row that lead to nothing new, before tuning ends."""


class Tuning(NamedTuple):
    """How much work may go into a large plan."""

    settings: int
    """Rules to try, the same for all stages."""
    changes: int
    """Rules to try after that, with other values for some stages."""
    exchanges: int
    """Orders to try in each search that swaps neighbours; there is one for every `_TURN` changes."""


def construct(clock: Clock, bound: int, tries: int, deadline: Deadline) -> list[Timed]:
    """Schedules from a grid of rules, best first; stops when one meets the bound."""
    problem = clock.problem
    priority = greedy_priority(problem)
    found: list[Timed] = []
    seen: set[bytes] = set()
    for _, rule in zip(range(tries), small_rules(problem), strict=False):
        if found and deadline.passed():
            break
        order = clock.loops.place(priority, rule)
        if order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        timed = clock.time(order)
        assert timed is not None
        found.append(timed)
        if timed.period <= bound:
            break
    return sorted(found, key=lambda timed: timed.rank)


def tune(clock: Clock, bound: int, effort: Tuning, noise: Noise, deadline: Deadline) -> Timed:
    """The best schedule of a rule that is tuned: first its settings, then stage by stage."""
    problem = clock.problem
    priorities = [greedy_priority(problem, last_first) for last_first in (False, True)]
    best: Timed | None = None
    chosen = _FIRST[0]

    def tell(setting: Setting) -> bool:
        nonlocal best, chosen
        order = clock.loops.place(priorities[setting.last_first], rule_of(problem, setting))
        timed = clock.time_at_once(order)
        if best is None or timed.rank < best.rank:
            best, chosen = timed, setting
        return best.period <= bound

    for setting in _next_settings(lambda: chosen, effort.settings, noise):
        if tell(setting) or deadline.passed():
            break
    assert best is not None
    rule = rule_of(problem, chosen)
    found = searched = best
    for turn in range(effort.changes + 1):
        if turn % _TURN == 0 and effort.exchanges:
            # The search goes on where it ended, unless the rule has become better since.
            begin = found if turn and best is searched else best
            searched = best
            found = min(found, exchange(clock, begin, bound, effort.exchanges, noise, deadline), key=_rank)
        if min(best, found, key=_rank).period <= bound or turn == effort.changes or deadline.passed():
            break
        other = _changed_stages(rule, noise)
        timed = clock.time_at_once(clock.loops.place(priorities[chosen.last_first], other))
        if timed.rank <= best.rank:
            best, rule = timed, other
    shortest = clock.time(min(best, found, key=_rank).order)
    assert shortest is not None
    return shortest


def _rank(timed: Timed) -> tuple[int, int]:
    return timed.rank


def _changed_stages(rule: Rule, noise: Noise) -> Rule:
    """Some stages next to each other have another value, once or twice."""
    # A long pipeline has more in flight everywhere, and takes longer steps.
    step = max(1, len(rule.depth) // 16)
    for _ in range(1 + noise.below(3) // 2):
        first = noise.below(len(rule.depth))
        stages = slice(first, first + step * _SPANS[noise.below(len(_SPANS))])
        name = ("patience", "patience_at_end", "depth", "burst")[noise.below(4)]
        values: Ints = getattr(rule, name).copy()
        match name:
            case "depth":
                choice = noise.below(2 * step)
                values[stages] += choice - step if choice < step else choice - step + 1
            case "burst":
                values[stages] = noise.below(8 * step + 1)
            case _:
                values[stages] = noise.below(90)
        rule = rule._replace(**{name: values})
    return rule


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
