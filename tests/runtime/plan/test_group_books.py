"""Plans with which a group of pipelines goes on when the other one has lost a stage."""

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.ir.layout import absent_cells, job_of_layout, parse_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from tests.support.layers import layer_costs, layered_job


def test_of_plans_of_one_cut_those_for_as_many_workers() -> None:
    """The first of the same cut is for more workers than the group has, on a grid of its own."""
    job = layered_job(layer_costs((1000,) * 4), (4,), 8, 1)
    grouped = parse_any_layout("2x2,2x2@7+4x1@1")
    assert isinstance(grouped, GroupedLayout)
    derived = job_of_groups(job, grouped)
    recuts = [[plan_failed(derived, absent_of_groups(derived, grouped))]]
    for text in ("2x4,2x4", "2x2,2x2"):
        cut = job_of_layout(job, parse_layout(text))
        recuts.append([plan_failed(cut, absent_cells(cut, parse_layout(text)))])
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan_failed(job, failure_set([]))], recuts=recuts))
    book = next(book for book in PlanBook(bundle).family if book.groups)
    found = book.alone([0, 1])
    assert found is not None
    alone, first = found
    live = [(pipeline, stage) for pipeline in range(2) for stage in range(2)]
    assert first == 0 and alone.assign(live) is not None
