"""Failures are planned for before they happen, those first that nothing would fit."""

from collections.abc import Collection, Iterable
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.coordinator.plans import FailedWorkers, Request
from recycle_runtime.coordinator.reconfiguration import is_beyond, missing_plans
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from tests.support.jobs import unit_job


def book(folder: Path, *states: list[tuple[int, int]]) -> PlanBook:
    path = folder / "test.plan"
    job = unit_job(2, 2, 2)
    write_bundle(path, source="", plans=[plan_failed(job, failure_set(state)) for state in states])
    return PlanBook(Bundle.read(path))


def next_failure(
    plans: PlanBook,
    live: Collection[Worker],
    tried: Iterable[FailedWorkers],
    nodes: Iterable[Collection[Worker]] = (),
) -> FailedWorkers | None:
    asked = {Request(failed) for failed in tried}
    request = next(missing_plans(plans, live, nodes, asked), None)
    return None if request is None else request.failed


def test_what_nothing_fits_comes_first(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    assert next_failure(plans, plans.grid, ()) == ((1, 1),)
    assert next_failure(plans, plans.grid, [((1, 1),)]) is None


def test_then_what_could_be_better(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0), (0, 1)])
    assert next_failure(plans, plans.grid, ()) == ((1, 0),)
    assert next_failure(plans, plans.grid, [((1, 0),)]) == ((1, 1),)


def test_a_node_comes_before_a_single_worker(tmp_path: Path) -> None:
    path = tmp_path / "test.plan"
    job = unit_job(2, 3, 2)
    write_bundle(
        path, source="", plans=[plan_failed(job, failure_set(())), plan_failed(job, failure_set([(0, 0)]))]
    )
    plans = PlanBook(Bundle.read(path))
    nodes = [[(pipeline, stage) for stage in range(2)] for pipeline in range(3)]
    first = next_failure(plans, plans.grid, (), nodes)
    assert first is not None
    assert first == ((2, 0), (2, 1)), "any of the nodes, for peers are interchangeable"
    assert next_failure(plans, plans.grid, [first], nodes) == ((2, 1),), "then a worker nothing fits without"
    whole = [[*nodes[0], *nodes[1], *nodes[2]]]
    assert next_failure(plans, plans.grid, (), whole) == ((2, 1),), "without it no worker would be left"


def test_the_last_worker_of_a_stage_cannot_be_planned_away(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    live = [place for place in plans.grid if place != (0, 0)]
    assert next_failure(plans, live, ()) == ((0, 0), (1, 1))
    assert next_failure(plans, [(1, 0), (1, 1)], ()) is None


def test_more_failures_than_the_bundle_was_made_for_are_spread_evenly(tmp_path: Path) -> None:
    path = tmp_path / "test.plan"
    job = unit_job(2, 4, 2)
    states: list[list[tuple[int, int]]] = [[], [(0, 0)]]
    write_bundle(path, source="", plans=[plan_failed(job, failure_set(state)) for state in states])
    plans = PlanBook(Bundle.read(path))
    failed = [(0, 1), (1, 1)]
    live = [place for place in plans.grid if place not in failed]
    tried = [next_failure(plans, live, ())]
    tried.append(next_failure(plans, live, [each for each in tried if each]))
    known = [each for each in tried if each]
    assert [sorted(stage for _, stage in each) for each in known] == [[0, 1, 1], [1, 1, 1]]
    assert next_failure(plans, live, known) == ((3, 0), (3, 1))
    one_failed = [place for place in plans.grid if place != (0, 1)]
    assert plans.is_planned(1) and next_failure(plans, one_failed, known) == ((3, 0), (0, 1))


def test_how_many_workers_the_bundle_is_made_for(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    assert [is_beyond(plans, workers) for workers in (4, 3, 2)] == [False, False, True]


def test_what_recyclec_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "x.plan"
    assert Request((), workers=5).arguments(out) == ["plan", "-", "--workers", "5", "-o", str(out)]
    assert "--split" in Request((), split=True, workers=5).arguments(out)
    assert Request(((0, 1),)).arguments(out) == ["plan", "-", "--failed", "0:1", "-o", str(out)]


def test_the_fastest_cut_comes_after_what_nothing_fits(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    live, asked = [(1, 0), (0, 1)], set[Request]()
    assert list(missing_plans(plans, plans.grid, workers_to_cut_for=4)) == [Request(((1, 1),))]
    assert list(missing_plans(plans, live, (), asked, workers_to_cut_for=2)) == [Request((), workers=2)]
    assert list(missing_plans(plans, live, (), {Request((), workers=2)}, workers_to_cut_for=2)) == []
