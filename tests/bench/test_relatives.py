from bench.relatives import Compared, relative, section
from bench.varied_jobs import given_jobs
from recycle_compiler.ir.job import JobSpec

FAILED = (4, 4, 4, 3, 7, 7, 4, 6, 5, 4, 6, 6)


def loads(job: JobSpec, failed: tuple[int, ...]) -> list[float]:
    """Work of a micro-batch on every stage, for each worker that is left."""
    work = map(sum, zip(job.forward, job.backward_input, job.backward_weight, strict=True))
    return [ticks * job.pipelines / (job.pipelines - gone) for ticks, gone in zip(work, failed, strict=True)]


def test_stages_of_a_relative_are_as_busy_beside_each_other():
    job = given_jobs()[2].job
    small, failed = relative(job, FAILED, (3, 6, 3))
    kept = (2, 6, 10)
    large = loads(job, FAILED)
    for stage, (here, place) in enumerate(zip(loads(small, failed), kept, strict=True)):
        # Three ops, each rounded to an eighth of a mean F.
        assert abs(here / large[place] - 1) < 0.08, stage
    assert (small.stages, small.pipelines, small.microbatches) == (3, 6, 3)
    assert all(
        room == 3 * activation for room, activation in zip(small.capacity, small.activation, strict=True)
    )


def test_means_are_those_of_settled_relatives():
    settled = Compared("a", (1, 0), tuned=102, searched=100, best=100, proven=100, raised=100, bound=99)
    is_open = Compared("b", (0, 1), tuned=110, searched=110, best=105, proven=100, raised=100, bound=100)
    rows = section([settled, is_open], "").rows
    assert rows[0][2:] == ("settled", "+2.00%", "+0.00%", "+0.00%", "-1.00%")
    assert rows[1][2] == "open by 5.00%"
    assert rows[2] == ("mean of settled", "", "1", "+2.00%", "+0.00%", "+0.00%", "-1.00%")
