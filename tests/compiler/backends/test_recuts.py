"""Plans under other cuts travel inside the bundle of their job."""

import pytest

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.ir.job import JobSpec, parse_job, print_job
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout, parse_layout
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.bundle import Bundle, BundleError
from tests.support.layers import layer_costs, layered_job

JOB = layered_job(layer_costs((1000, 2000, 1000, 1000, 3000)), (2, 3), pipelines=3, microbatches=4)
OWN = plan_failed(JOB, ())


def recut(job: JobSpec, text: str) -> Streams:
    layout = parse_layout(text)
    derived = job_of_layout(job, layout)
    return plan_failed(derived, absent_cells(derived, layout))


def test_a_bundle_gives_back_the_plans_of_other_cuts() -> None:
    other = recut(JOB, "2x2,2x1,1x3")
    bundle = Bundle.parse(bundle_bytes(source="job", plans=[OWN], recuts=[[other]]))
    assert bundle.cut == (2, 3)
    (nested,) = bundle.recuts
    assert (nested.cut, nested.stages, nested.pipelines, nested.microbatches) == ((2, 2, 1), 3, 3, 4)
    assert [len([w for w in nested.workers(0) if w[1] == stage]) for stage in range(3)] == [2, 1, 3]
    streams = read_streams(nested, 0)
    assert streams.claims == other.claims
    assert (streams.opcode == other.opcode).all()


def test_the_hash_covers_other_cuts() -> None:
    plain = Bundle.parse(bundle_bytes(source="", plans=[OWN]))
    first, second = (
        Bundle.parse(bundle_bytes(source="", plans=[OWN], recuts=[[recut(JOB, text)]]))
        for text in ("2x2,2x1,1x3", "2x3,2x1,1x2")
    )
    assert len({plain.content_hash, first.content_hash, second.content_hash}) == 3


def test_a_bundle_of_another_model_is_no_recut() -> None:
    stranger = layered_job(layer_costs((1000, 1000)), (1, 1), pipelines=3, microbatches=4)
    data = bundle_bytes(source="", plans=[OWN], recuts=[[plan_failed(stranger, ())]])
    with pytest.raises(BundleError, match="a re-cut has other layers"):
        Bundle.parse(data)


def test_every_cut_runs_the_same_microbatches() -> None:
    derived = job_of_layout(JOB, parse_layout("1x5,4x1"))
    # Twelve micro-batches in all; five workers need a grid of six.
    assert (derived.pipelines, derived.microbatches) == (6, 2)
    assert derived.forward == (1000, 7000)


def test_a_job_in_layers_reads_back() -> None:
    assert parse_job(print_job(JOB).splitlines()) == JOB
    derived = job_of_layout(JOB, Layout((1, 4), (2, 2)))
    assert parse_job(print_job(derived).splitlines()) == derived


@pytest.mark.parametrize("text", ["", "8", "0x3", "3x0", "axb", "3x2,", "-1x2", "3x2;4x1"])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a stage is LAYERSxWORKERS"):
        parse_layout(text)
