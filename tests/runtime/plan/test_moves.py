"""Moves of workers, and when they pay."""

from itertools import product
from typing import Any

import networkx as nx  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import (
    ChangeRate,
    CostOfMoves,
    Counts,
    StageLoads,
    least_moves,
    moves_text,
    quickest_counts,
)


@st.composite
def failures(draw: st.DrawFn) -> tuple[int, set[Worker], Counts]:
    """Pipelines, the failed workers, and other counts of as many failures that leave everybody a peer."""
    stages, pipelines = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    grid = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    failed: set[Worker] = set()
    wanted = [0] * stages
    for worker in draw(st.permutations(grid))[: draw(st.integers(0, stages * (pipelines - 1)))]:
        if sum(other[1] == worker[1] for other in failed) < pipelines - 1:
            failed.add(worker)
    for _ in failed:
        wanted[draw(st.sampled_from([s for s in range(stages) if wanted[s] < pipelines - 1]))] += 1
    return pipelines, failed, tuple(wanted)


@given(failures())
def test_moves_lead_to_the_wanted_counts_and_none_is_needless(case: tuple[int, set[Worker], Counts]) -> None:
    pipelines, failed, wanted = case
    stages = range(len(wanted))
    live = {(p, s) for p in range(pipelines) for s in stages} - failed
    counts = tuple(sum(worker[1] == stage for worker in failed) for stage in stages)
    moves = least_moves(live, wanted, pipelines)
    after = (live - moves.keys()) | set(moves.values())
    assert moves.keys() <= live and set(moves.values()) <= failed
    assert len(after) == len(live)
    assert tuple(pipelines - sum(worker[1] == stage for worker in after) for stage in stages) == wanted
    assert len(moves) == sum(max(0, a - b) for a, b in zip(counts, wanted, strict=True))


@given(failures(), st.lists(st.integers(0, 1000), min_size=6, max_size=6))
def test_no_moves_cost_less(case: tuple[int, set[Worker], Counts], parameters: list[int]) -> None:
    """Against a minimum-cost flow; a move copies the parameters of its new stage, then distance counts."""
    pipelines, failed, wanted = case
    stages = len(wanted)
    live = {(p, s) for p in range(pipelines) for s in range(stages)} - failed
    counts = [sum(worker[1] == stage for worker in failed) for stage in range(stages)]

    def cost(source: int, target: int) -> int:
        return parameters[target] * 1000 + abs(source - target)

    graph: Any = nx.DiGraph()
    for stage in range(stages):
        # Demand is what flows in: negative where workers come from.
        graph.add_node(stage, demand=counts[stage] - wanted[stage])
    for source, target in product(range(stages), repeat=2):
        if wanted[source] > counts[source] and counts[target] > wanted[target]:
            graph.add_edge(source, target, weight=cost(source, target))
    found = least_moves(live, wanted, pipelines)
    assert sum(cost(s, t) for (_, s), (_, t) in found.items()) == nx.min_cost_flow_cost(graph)


def test_workers_go_to_near_stages_and_slow_ones_stay() -> None:
    live = {(p, s) for p in range(3) for s in range(4)} - {(1, 2), (0, 3)}
    assert least_moves(live, (1, 1, 0, 0), 3) == {(0, 0): (1, 2), (0, 1): (0, 3)}
    assert least_moves(live, (1, 1, 0, 0), 3, last={(0, 0)}) == {(1, 0): (1, 2), (0, 1): (0, 3)}


def test_what_moves_cannot_do() -> None:
    live = {(p, s) for p in range(3) for s in range(2)} - {(0, 1)}
    with pytest.raises(ValueError, match="keep the number"):
        least_moves(live, (0, 0), 3)
    with pytest.raises(ValueError, match="no peer to copy from"):
        least_moves({(0, 0), (1, 0), (2, 0)}, (2, 1), 3)


@st.composite
def loads_and_failures(draw: st.DrawFn) -> tuple[StageLoads, Counts]:
    stages, pipelines = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    times = st.lists(st.integers(0, 9), min_size=stages, max_size=stages).map(tuple)
    failed = draw(st.tuples(*[st.integers(0, pipelines - 1)] * stages))
    # Stages of one group of pipelines have as many micro-batches, those of another have others.
    shares = draw(st.lists(st.integers(1, 30), min_size=1, max_size=2))
    units = tuple(draw(st.sampled_from(shares)) for _ in range(stages))
    return StageLoads(pipelines, units, draw(times), draw(times)), failed


def slowest(loads: StageLoads, failed: Counts) -> int:
    return max(loads.ticks(stage, gone) for stage, gone in enumerate(failed))


@given(loads_and_failures())
def test_failures_lie_where_the_slowest_stage_is_fastest(case: tuple[StageLoads, Counts]) -> None:
    loads, failed = case
    found = quickest_counts(failed, loads)
    counts = product(range(loads.pipelines), repeat=len(failed))
    best = min(slowest(loads, each) for each in counts if sum(each) == sum(failed))
    assert sum(found) == sum(failed) and max(found) < loads.pipelines
    assert slowest(loads, found) == best
    if slowest(loads, failed) == best:
        assert found == failed


@given(loads_and_failures())
def test_as_few_workers_move_as_can_for_that(case: tuple[StageLoads, Counts]) -> None:
    loads, failed = case
    found = quickest_counts(failed, loads)
    alike = [
        counts
        for counts in product(range(loads.pipelines), repeat=len(failed))
        if sum(counts) == sum(failed) and slowest(loads, counts) == slowest(loads, found)
    ]
    moved = [sum(max(0, b - a) for a, b in zip(failed, counts, strict=True)) for counts in alike]
    assert sum(max(0, b - a) for a, b in zip(failed, found, strict=True)) == min(moved)


def test_the_fastest_stage_carries_the_failure_that_is_left_over() -> None:
    loads = StageLoads(6, (36,) * 4, (8, 8, 5, 8), (1, 1, 1, 1))
    assert quickest_counts((4, 3, 3, 3), loads) == (3, 3, 4, 3)


def test_what_is_expected_counts_like_one_change_seen() -> None:
    rate = ChangeRate(3600.0)
    assert rate.seconds(50.0) == 3600.0
    rate.begin(100.0)
    rate.begin(300.0)
    assert rate.seconds(500.0) == 4000.0
    for _ in range(9):
        rate.change()
    assert rate.seconds(500.0) == 400.0


def measured_costs() -> CostOfMoves:
    costs = CostOfMoves()
    costs.regrouped(0.9, copying=0.4)
    costs.copied(4_000_000, 0.4)
    costs.state_bytes = {1: 10_000_000, 2: 20_000_000}
    return costs


def test_a_move_costs_a_regroup_and_a_copy() -> None:
    costs = measured_costs()
    assert costs.of({(0, 0): (1, 2)}) == 0.5 + 2.0
    # Another stage copies at the same time, the same stage afterwards.
    assert costs.of({(0, 0): (1, 2), (0, 3): (0, 1)}) == 0.5 + 2.0
    assert costs.of({(0, 0): (1, 2), (0, 3): (0, 2)}) == 0.5 + 4.0


def test_before_anything_is_measured_there_is_an_estimate() -> None:
    costs = CostOfMoves()
    costs.state_bytes = {2: 3_000_000_000}
    assert costs.of({(0, 0): (1, 2)}) == 2.0 + 3.0


def weighed(saving: float, outlook: Outlook) -> JobChange:
    moves = {(0, 0): (1, 2)}
    return JobChange(moves_text(moves), "moved", outlook, saving, measured_costs().of(moves))


def test_it_moves_when_that_pays_before_the_next_change() -> None:
    change = weighed(0.03, Outlook(0.81, 3564.0, 10_000))
    assert change.pays
    assert str(change) == (
        "move 0:0 to 1:2 saves 3.0 % of 0.81 s a step, a pause of 2.5 s, 3564 s expected: moved"
    )


def test_it_stays_when_the_next_change_or_the_end_is_near() -> None:
    soon = weighed(0.03, Outlook(0.81, 60.0, 10_000))
    ends = weighed(0.03, Outlook(0.81, 3564.0, 100))
    assert not soon.pays and not ends.pays
    assert str(ends).endswith("a pause of 2.5 s, 81 s expected: not moved")
    same = weighed(0.0, Outlook(0.81, 3564.0, 10_000))
    assert not same.pays
    assert str(same) == "move 0:0 to 1:2 saves nothing: not moved"
