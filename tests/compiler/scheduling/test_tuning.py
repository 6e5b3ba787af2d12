"""Large plans: the tree of events is a heap, list schedules are in step with timing, tuned ones are whole."""

from heapq import heappop, heappush

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.target import Target
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Goal, Guard, Noise
from recycle_compiler.scheduling.exchanges import placed_by_rule, placed_in_order
from recycle_compiler.scheduling.inner_loops import NEVER, tree_pop, tree_push
from recycle_compiler.scheduling.rules import greedy_priority, small_rules
from recycle_compiler.scheduling.timing import Clock
from recycle_compiler.scheduling.tuning import Tuning, tune
from tests.support.jobs import routed_problem, small_targets

AMPLE = Budget(Guard(10**15))
LEAVES = 8


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, LEAVES - 1), st.booleans()), max_size=60))
def test_the_tree_gives_the_next_event_of_every_worker(steps: list[tuple[int, int, bool]]) -> None:
    """As a heap does, when of several events of a worker only the first counts."""
    tree = np.arange(2 * LEAVES, dtype=np.int64) % LEAVES + NEVER
    tree[0] = LEAVES
    events: dict[int, int] = {}
    for time, worker, takes in steps:
        event = time * LEAVES + worker
        tree_push(tree, event)
        events[worker] = min(event, events.get(worker, event))
        if takes:
            first = min(events.values())
            assert tree_pop(tree) == first
            del events[first % LEAVES]
    heap: list[int] = []
    for event in events.values():
        heappush(heap, event)
    assert [tree_pop(tree) for _ in events] == [heappop(heap) for _ in events]
    assert tree_pop(tree) >= NEVER


@settings(max_examples=60, deadline=None)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_list_schedules_end_when_their_orders_do_or_later(target: Target) -> None:
    clock = Clock(routed_problem(target.job, target.failed))
    priority, goal = greedy_priority(clock.problem), Goal(0, 0)
    for rule in list(small_rules(clock.problem))[::9]:
        by_rule = placed_by_rule(clock, priority, rule, goal)
        assert by_rule is not None
        in_order = placed_in_order(clock, by_rule.order, goal)
        assert in_order is not None
        assert (by_rule.end >= in_order.end).all()
        assert by_rule.period >= in_order.period == clock.time_at_once(by_rule.order).period


@settings(max_examples=30, deadline=None)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_tuning_keeps_orders_whole(target: Target) -> None:
    clock = Clock(routed_problem(target.job, target.failed))
    bound = lower_bound(clock.problem).period
    greedy = clock.loops.place(greedy_priority(clock.problem), next(small_rules(clock.problem)))
    assert greedy is not None
    ops = sorted(greedy.tolist())
    for effort in (Tuning(2, 0, 0, 0), Tuning(2, 2, 6, 6)):
        timed = tune(clock, Goal(bound, bound), effort, Noise(0), AMPLE).timed
        assert sorted(timed.order.tolist()) == ops
        assert timed.period >= bound
