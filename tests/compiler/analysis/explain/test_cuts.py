"""Periods of other cuts, against plans of these cuts."""

from recycle_compiler.analysis.explain.cuts import CutFacts, cut_facts
from recycle_compiler.analysis.explain.document import explanation_document
from recycle_compiler.analysis.explain.report import explain
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle
from tests.support.layers import layer_costs, layered_job

TIMES = (1000, 2000, 1000, 4000)
ROOMY = layered_job(layer_costs(TIMES, resident=2000), (2, 2), pipelines=3, microbatches=2)
TIGHT = layered_job(layer_costs(TIMES, resident=2000, capacity=7000), (2, 2), pipelines=3, microbatches=2)
"""A stage of two layers takes 4 for their state and 2 for one activation; three layers would take 9."""


def facts(job: JobSpec) -> tuple[Schedule, CutFacts]:
    plan = plan_failed(job, ())
    found = cut_facts(Bundle.parse(bundle_bytes(source="", plans=[plan])), job, replay(plan), 0)
    assert found is not None
    return replay(plan), found


def test_a_layer_or_a_worker_over_the_border() -> None:
    _, found = facts(ROOMY)
    assert [(move.what, move.source, move.target, str(move.layout)) for move in found.moves] == [
        ("layer", 0, 1, "1x3,3x3"),
        ("worker", 0, 1, "2x2,2x4"),
        ("layer", 1, 0, "3x3,1x3"),
        ("worker", 1, 0, "2x4,2x2"),
    ]


def test_no_plan_of_a_changed_layout_is_faster_than_its_bound() -> None:
    schedule, found = facts(ROOMY)
    assert found.bound <= schedule.claims.period
    for move in found.moves:
        derived = job_of_layout(ROOMY, move.layout)
        assert move.bound <= plan_failed(derived, absent_cells(derived, move.layout)).claims.period
    stage, bound = found.where_one_more
    more = [workers + (number == stage) for number, workers in enumerate(found.layout.workers)]
    derived = job_of_layout(ROOMY, Layout(found.layout.layers, tuple(more)))
    layout = Layout(found.layout.layers, tuple(more))
    assert bound <= plan_failed(derived, absent_cells(derived, layout)).claims.period


def test_a_move_that_does_not_fit_into_memory() -> None:
    schedule, found = facts(TIGHT)
    assert [move.fits for move in found.moves] == [False, True, False, True]
    told = explanation_text(explain(schedule, "none", found))
    assert "    a layer from stage 0 to stage 1: does not fit into memory\n" in told
    assert '"bound": null' in explanation_document(explain(schedule, "none", found))


def test_a_job_without_layers_has_no_such_facts() -> None:
    plan = plan_failed(ROOMY, ())
    derived = job_of_layout(ROOMY, Layout((2, 2), (3, 3)))
    assert cut_facts(Bundle.parse(bundle_bytes(source="", plans=[plan])), derived, replay(plan), 0) is None
