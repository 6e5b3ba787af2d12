"""Losses are planned for before they happen, those first that nothing would fit."""

from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.compiler import plan_failed
from recycle_compiler.ir.failure import failure_set
from recycle_runtime.bundle import Bundle
from recycle_runtime.coordinator.foresight import next_loss
from recycle_runtime.coordinator.plan_book import PlanBook
from tests.support.jobs import unit_job


def book(folder: Path, *states: list[tuple[int, int]]) -> PlanBook:
    path = folder / "test.plan"
    job = unit_job(2, 2, 2)
    write_bundle(path, source="", programs=[plan_failed(job, failure_set(state)) for state in states])
    return PlanBook(Bundle.read(path))


def test_what_nothing_fits_comes_first(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    assert next_loss(plans, plans.grid, ()) == ((1, 1),)
    assert next_loss(plans, plans.grid, [((1, 1),)]) is None


def test_then_what_could_be_better(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0), (0, 1)])
    assert next_loss(plans, plans.grid, ()) == ((1, 0),)
    assert next_loss(plans, plans.grid, [((1, 0),)]) == ((1, 1),)


def test_the_last_worker_of_a_stage_cannot_be_planned_away(tmp_path: Path) -> None:
    plans = book(tmp_path, [], [(0, 0)])
    live = [place for place in plans.grid if place != (0, 0)]
    assert next_loss(plans, live, ()) == ((0, 0), (1, 1))
    assert next_loss(plans, [(1, 0), (1, 1)], ()) is None
