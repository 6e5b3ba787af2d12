"""First schedules: list scheduling by a greedy rule, with one setting after another.

Small plans try a grid of settings. Large ones, where a single try takes a good part of a second, change one
setting of the best rule so far at a time.
"""

from collections.abc import Callable, Iterator
from typing import Any

from recycle_compiler.passes.assign_slots.deadline import Deadline
from recycle_compiler.passes.assign_slots.rules import (
    NO_LIMIT,
    Setting,
    greedy_priority,
    rule_of,
    small_rules,
)
from recycle_compiler.passes.assign_slots.timing import Clock, Timed

_FIRST = (
    Setting(depth=(0, 0), patience=(10, 60), patience_at_end=30),
    Setting(depth=(0, 0), patience=(30, 30), patience_at_end=30),
    Setting(),
)
_CHOICES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("burst", (25, 50, 0, 100)),
    ("depth", ((1, 0), (0, 0), (2, 0), (1, 1), (2, 2))),
    ("last_first", (True, False)),
    ("patience", ((20, 60), (30, 30), (10, 60), (5, 60), (15, 45), (5, 30), (30, 60), (0, 0))),
    ("ahead", (6, 3, NO_LIMIT)),
    ("patience_at_end", (60, 30, 100)),
    ("burst", (12, 75, 37, 125)),
)


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


def tune(clock: Clock, bound: int, tries: int, deadline: Deadline) -> Timed:
    """The best schedule of a rule whose settings are improved one at a time."""
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

    for setting in _next_settings(lambda: chosen, tries):
        if tell(setting) or deadline.passed():
            break
    assert best is not None
    shortest = clock.time(best.order)
    assert shortest is not None
    return shortest


def _next_settings(chosen: Callable[[], Setting], most: int) -> Iterator[Setting]:
    """Settings not seen before: the first ones, then changes of what is best by then."""
    seen: set[Setting] = set()

    def fresh() -> Iterator[Setting]:
        yield from _FIRST
        before = None
        while before != chosen():
            before = chosen()
            for name, values in _CHOICES:
                for value in values:
                    yield chosen()._replace(**{name: value})

    for setting in fresh():
        if len(seen) == most:
            return
        if setting not in seen:
            seen.add(setting)
            yield setting
