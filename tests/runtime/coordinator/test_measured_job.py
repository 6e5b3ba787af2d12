"""The job of a bundle with other times, as the compiler reads it."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.our_plans import loads_of
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.groups import GroupedLayout, job_of_groups
from recycle_compiler.ir.job import JobSpec, SolverOptions, print_job
from recycle_compiler.ir.layout import Layout, halved, job_of_layout, shared_out
from recycle_compiler.ir.target import Target
from recycle_runtime.coordinator.measured_job import JobText, StageTimes
from tests.support.jobs import figure3, small_targets
from tests.support.layers import jobs_and_groups, jobs_and_layouts, layer_costs, layered_job


def read_back(job: JobSpec, times: StageTimes | None = None) -> JobSpec:
    text = JobText(print_job(job))
    return parse_job_text(text.with_times(times or text.times), "measured.job")


@given(small_targets())
def test_with_its_own_times_it_is_the_same_job(target: Target) -> None:
    job = target.job
    held = tuple(
        amount * job.pipelines * job.microbatches if limit is None else limit
        for amount, limit in zip(job.activation, job.capacity, strict=True)
    )
    expected = job if job.capacity == (None,) * job.stages else replace(job, capacity=held)
    # Planning beside a run has less time than the job says.
    assert read_back(job) == replace(expected, solver=replace(job.solver, time_limit_ns=60 * 10**9))


@given(st.lists(st.integers(1, 1 << 50), min_size=20, max_size=20))
def test_measured_times_are_exact(ticks: list[int]) -> None:
    times = StageTimes(*(tuple(ticks[4 * k : 4 * k + 4]) for k in range(5)))
    job = read_back(figure3(4), StageTimes(*(tuple(tick % 10**9 + 1 for tick in row) for row in times)))
    assert job.forward == tuple(tick % 10**9 + 1 for tick in times.forward)
    assert job.reduce == tuple(tick % 10**9 + 1 for tick in times.reduce)


@given(small_targets())
def test_loads_are_those_of_the_compiler(target: Target) -> None:
    assert JobText(print_job(target.job)).loads == loads_of(target.job)


@given(jobs_and_groups())
def test_every_group_counts(case: tuple[JobSpec, GroupedLayout]) -> None:
    """Each stage has the work and the state of its layers, and the micro-batches of its group."""
    job, layout = case
    costs = job.layer_costs
    assert costs is not None
    derived = job_of_groups(job, layout)
    text = JobText(print_job(derived))
    assert text.loads == loads_of(derived)
    work = [sum(row) for row in zip(costs.forward, costs.backward_input, costs.backward_weight, strict=True)]
    assert text.loads.each == tuple(sum(work[first:past]) for first, past in layout.ranges)
    assert text.loads.once == tuple(sum(costs.optimizer[first:past]) for first, past in layout.ranges)
    pairs = zip(layout.groups, layout.shares, strict=True)
    assert text.loads.microbatches == tuple(share for group, share in pairs for _ in group.layers)
    for stage, (first, past) in enumerate(layout.ranges):
        assert text.parameter_bytes(stage) == sum(costs.parameters[first:past])


def test_real_times_and_bytes() -> None:
    job = replace(
        figure3(None),
        unit="ms",
        memory_unit="byte",
        forward=(1_234_567, 2, 3, 4),
        activation=(100, 200, 300, 400),
        kept_for_weight=(1, 2, 3, 4),
        capacity=(4_000, 3_000, 2_000, 1_000),
        solver=SolverOptions(1_500_000_000, 12_345, 7),
        failures=3,
    )
    # What moves copy is not needed to plan, and `us` is as good as `ms`.
    assert read_back(replace(job, parameters=(1, 2, 3, 4))) == replace(job, unit="us")
    assert JobText(print_job(replace(job, parameters=(1, 2, 3, 4)))).parameter_bytes(3) == 4


@given(jobs_and_layouts())
def test_a_job_in_layers_keeps_its_layers(case: tuple[JobSpec, Layout]) -> None:
    job = case[0]
    found = read_back(job)
    assert found.layer_costs is not None and job.layer_costs is not None
    # Reductions are given as the job's own workers take them, and are rounded.
    reduced = replace(job.layer_costs, reduce=found.layer_costs.reduce)
    solver = replace(job.solver, time_limit_ns=60 * 10**9)
    assert replace(found, reduce=job.reduce) == replace(job, layer_costs=reduced, solver=solver)


def test_what_was_measured_of_stages_is_shared_out_among_their_layers() -> None:
    job = layered_job(layer_costs((1000, 3000, 1000, 1000)), (2, 2), 2, 4)
    times = StageTimes((8000, 2001), (4000, 2000), (4000, 2000), (6, 0), (0, 0))
    found = read_back(job, times)
    assert found.layer_costs is not None
    assert found.layer_costs.forward == (2000, 6000, 1000, 1001)
    assert (found.forward, found.cut, found.optimizer) == ((8000, 2001), (2, 2), (6, 0))


def test_times_of_stages_of_another_cut_and_of_halves_are_times_of_the_same_layers() -> None:
    job = replace(layered_job(layer_costs((1000,) * 4), (2, 2), 2, 4), split_ppm=100_000)
    layout = Layout((1, 3), (2, 2))
    for base in (job, halved(job)):
        other = job_of_layout(base, layout)
        under = JobText(print_job(other))
        twice = StageTimes(*(tuple(2 * tick for tick in row) for row in under.times))
        text = JobText(print_job(job)).with_times(twice, under)
        found = parse_job_text(text, "measured.job")
        assert found.split_ppm == job.split_ppm and found.layer_costs is not None
        assert found.layer_costs.forward == (2000,) * 4
        again = job_of_layout(found if base is job else halved(found), layout)
        assert again.forward == tuple(2 * tick for tick in other.forward)


@given(
    owners=st.integers(1, 3),
    rows=st.lists(st.integers(0, 900), min_size=8, max_size=8),
    limited=st.booleans(),
)
def test_stages_with_a_sharded_state(owners: int, rows: list[int], limited: bool) -> None:
    """Times of workers that step their own shards: the whole state's are what a job says."""
    whole = replace(figure3(4 if limited else None), optimizer=tuple(1000 + tick for tick in rows[:4]))
    each = (3,) * 4
    job = shared_out(whole, owners, each, tuple(rows[4:]), tuple(rows[:4]), (0,) * 4)
    found = read_back(job)
    assert (found.optimizer, found.reduce, found.gather) == (job.optimizer, job.reduce, job.gather)
    assert found.owners == owners and found.sharding is not None and job.sharding is not None
    assert found.sharding.state == job.sharding.state
    if limited:
        assert found.capacity == job.capacity
    twice = StageTimes(*(tuple(2 * tick for tick in row) for row in JobText(print_job(job)).times))
    slower = read_back(job, twice)
    assert slower.optimizer == tuple(2 * tick for tick in job.optimizer)
    assert slower.gather == tuple(2 * tick for tick in job.gather)


def test_layers_with_a_sharded_state_under_another_cut() -> None:
    costs = layer_costs((1000,) * 4, optimizer=900, reduce=400, resident=10, capacity=9000)
    job = layered_job(replace(costs, gather=(200,) * 4, state=(600,) * 4), (2, 2), 3, 4, owners=2)
    other = job_of_layout(job, Layout((1, 3), (2, 3)))
    under = JobText(print_job(other))
    assert read_back(job).gather == job.gather and read_back(job).optimizer == job.optimizer
    twice = StageTimes(*(tuple(2 * tick for tick in row) for row in under.times))
    found = parse_job_text(JobText(print_job(job)).with_times(twice, under), "measured.job")
    again = job_of_layout(found, Layout((1, 3), (2, 3)))
    assert again.owners == 2 and again.capacity == other.capacity
    assert again.optimizer == tuple(2 * tick for tick in other.optimizer)
    for now, before in ((again.reduce, other.reduce), (again.gather, other.gather)):
        # Rounded, layer by layer, for as many workers as the job has.
        assert all(abs(new - 2 * old) <= 4 for new, old in zip(now, before, strict=True))
