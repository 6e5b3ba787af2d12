"""The model says what it should: a schedule meets all rows, a broken rule breaks the rows named for it."""

import numpy as np
import pytest

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.scheduling.milp.certificate import Ints
from recycle_compiler.scheduling.milp.groups import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    GrainSpan,
    groups_by_route,
    lay_out_groups,
    pooled_group,
)
from recycle_compiler.scheduling.milp.model import Model, build_model, pyo
from recycle_compiler.scheduling.problem import Problem
from tests.support.jobs import ALL, DECOUPLED, figure3, routed_problem, unit_job

GOOD = np.array(
    [
        [[0, 1], [1, 3]],
        [[3, 2], [5, 4]],
        [[4, 5], [6, 6]],
    ]
)
"""start[kind, unit, stage] in grains: two micro-batches on one pipeline of two stages."""


def two_stages(capacity: tuple[int, int] = (2, 2), *, staggered: bool = False) -> Problem:
    return routed_problem(unit_job(2, 1, 2, capacity, ALL if staggered else DECOUPLED, optimizer=0))


def stated(problem: Problem, target: int) -> Model:
    groups = groups_by_route(problem)
    return build_model(problem, groups, lay_out_groups(problem, groups, target))


def broken_groups(model: Model, start: Ints, opens: tuple[int, ...] = (0, 0)) -> set[str]:
    """The groups of constraints that these starts break."""
    key: tuple[int, int, int, int]
    for key, variable in model.pyomo.started.items():
        stage, kind, group, grain = key
        starts = (int(start[kind, unit, stage]) for unit in model.groups.units[group])
        variable.set_value(sum(begin <= grain for begin in starts), skip_validation=True)
    opening: tuple[int, int]
    for opening, variable in model.pyomo.opened.items():
        stage, grain = opening
        variable.set_value(int(opens[stage] <= grain), skip_validation=True)
    model.pyomo.impossible.set_value(0)
    groups = model.pyomo.component_objects(pyo.Constraint)
    return {group.name for group in groups if any(row.slack() < 0 for row in group.values())}


def moved(kind: int, unit: int, stage: int, grain: int) -> Ints:
    start = GOOD.copy()
    start[kind, unit, stage] = grain
    return start


def test_a_schedule_meets_every_row() -> None:
    assert broken_groups(stated(two_stages(), 8), GOOD) == set()


@pytest.mark.parametrize(
    "start, group",
    [
        (moved(FORWARD, 1, 1, 1), "ops_follow_their_cause"),
        (moved(BACKWARD, 1, 0, 4), "ops_follow_their_cause"),
        (moved(WEIGHT, 1, 0, 5), "ops_follow_their_cause"),
        (moved(WEIGHT, 0, 1, 6), "workers_do_one_thing"),
    ],
)
def test_a_broken_rule_breaks_its_rows(start: Ints, group: str) -> None:
    # A wide target, so that no op is held by its span alone.
    assert group in broken_groups(stated(two_stages(), 12), start)


def test_an_activation_too_many_breaks_memory_alone() -> None:
    assert broken_groups(stated(two_stages((2, 1)), 8), GOOD) == {"memory_suffices"}


def test_staggered_windows_open_with_the_first_forward_and_close_in_time() -> None:
    problem = two_stages(staggered=True)
    assert broken_groups(stated(problem, 9), GOOD, opens=(0, 1)) == set()
    assert broken_groups(stated(problem, 9), moved(WEIGHT, 1, 1, 9), opens=(0, 1)) == set()
    assert broken_groups(stated(problem, 9), moved(WEIGHT, 1, 1, 10), opens=(0, 1)) == {"windows_close"}
    assert broken_groups(stated(problem, 9), GOOD, opens=(0, 2)) == {"forwards_open_windows"}


def test_spans_of_a_lone_microbatch_close_on_its_chain() -> None:
    problem = routed_problem(unit_job(3, 1, 1, None, DECOUPLED, optimizer=2))
    layout = lay_out_groups(problem, groups_by_route(problem), 7 + 2)
    assert layout.spans[0] == (GrainSpan(0, 0), GrainSpan(5, 5), GrainSpan(6, 6))
    assert layout.spans[2] == (GrainSpan(2, 2), GrainSpan(3, 3), GrainSpan(4, 6))
    assert not layout.is_empty
    assert lay_out_groups(problem, groups_by_route(problem), 6 + 2).is_empty


def test_microbatches_with_one_route_are_one_group() -> None:
    problem = routed_problem(figure3(4), failure_set([(1, 2)]))
    groups = groups_by_route(problem)
    assert sorted(unit for units in groups.units for unit in units) == list(range(18))
    for units, route in zip(groups.units, groups.route, strict=True):
        assert {tuple(row) for row in problem.host[list(units)].tolist()} == {route}
    assert len(set(groups.route)) == len(groups.route)


def test_pooling_forgets_routes_and_keeps_what_workers_can_do() -> None:
    groups = pooled_group(routed_problem(figure3(4), failure_set([(1, 2)])))
    assert groups.pooled == (3, 3, 2, 3)
    assert [groups.share(stage) for stage in range(4)] == [6, 6, 9, 6]
