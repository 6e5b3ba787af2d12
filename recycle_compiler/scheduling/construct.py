"""First schedules of a small plan: list scheduling by a greedy rule, with a grid of settings."""

from recycle_compiler.scheduling.deadline import Deadline
from recycle_compiler.scheduling.rules import greedy_priority, small_rules
from recycle_compiler.scheduling.timing import Clock, Timed


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
        if order is None or order.tobytes() in seen:
            continue
        seen.add(order.tobytes())
        timed = clock.time(order)
        assert timed is not None
        found.append(timed)
        if timed.period <= bound:
            break
    assert found, "no rule finds an order that obeys every edge"
    return sorted(found, key=lambda timed: timed.rank)
