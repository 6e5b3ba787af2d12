"""Jobs in layers for tests: every layer alike unless a test says otherwise."""

from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from recycle_compiler.ir.groups import GroupedLayout
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import Layout, job_of_layout, shared_out
from tests.support.jobs import unit_job


def layer_costs(
    forward: tuple[int, ...],
    *,
    activation: int = 1000,
    resident: int = 0,
    capacity: int | None = None,
    optimizer: int = 0,
    reduce: int = 0,
    transfer: int = 0,
) -> LayerCosts:
    """Layers whose forward, backward for inputs and for weights take as long as each other."""
    count = len(forward)
    return LayerCosts(
        forward=forward,
        backward_input=forward,
        backward_weight=forward,
        optimizer=(optimizer,) * count,
        reduce=(reduce,) * count,
        transfer=(transfer,) * (count - 1),
        activation=(activation,) * count,
        kept_for_weight=(activation,) * count,
        parameters=(1000,) * count,
        resident=(resident,) * count,
        capacity=capacity,
    )


def layered_job(
    costs: LayerCosts,
    cut: tuple[int, ...],
    pipelines: int,
    microbatches: int,
    *,
    failures: int = 0,
    redundancy: int = 2,
    owners: int = 0,
    slots: int = 0,
) -> JobSpec:
    """A job that starts with this cut; with a sharded state where it has owners, with experts if slots."""
    plain = unit_job(len(cut), pipelines, microbatches)
    if owners:
        every = (pipelines,) * len(cut), (0,) * len(cut)
        plain = shared_out(plain, owners, every[0], every[1], every[1], every[1])
    plain = replace(plain, slots=slots, placed_every=min(1, slots))
    free = replace(plain, cut=cut, layer_costs=costs, redundancy=redundancy)
    own = job_of_layout(free, Layout(cut, (pipelines,) * len(cut)))
    return replace(own, pipelines=pipelines, microbatches=microbatches, layer_costs=costs, failures=failures)


@st.composite
def jobs_and_layouts(draw: st.DrawFn) -> tuple[JobSpec, Layout]:
    """Small jobs in layers with uneven costs and any techniques, and another cut in which they fit."""
    layers = draw(st.integers(2, 6))

    def column(least: int, most: int, count: int = layers) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(least, most), min_size=count, max_size=count)))

    activation, resident = column(0, 3), column(0, 2)
    costs = LayerCosts(
        forward=column(1, 4),
        backward_input=column(1, 4),
        backward_weight=column(1, 4),
        optimizer=column(0, 3),
        reduce=column(0, 4),
        transfer=column(0, 2, layers - 1),
        activation=activation,
        kept_for_weight=tuple(draw(st.integers(0, whole)) for whole in activation),
        parameters=column(0, 3),
        resident=resident,
        capacity=draw(st.none() | st.integers(0, 6).map(lambda more: sum(activation) + sum(resident) + more)),
    )
    pipelines, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    job = layered_job(costs, _cut(draw, layers), pipelines, microbatches, redundancy=1)
    techniques = Techniques(decouple=draw(st.booleans()), stagger=draw(st.booleans()))
    cut = _cut(draw, layers)
    most = min(4, pipelines * microbatches)
    workers = tuple(draw(st.integers(1, most)) for _ in cut)
    return replace(job, techniques=techniques), Layout(cut, workers)


@st.composite
def expert_jobs_and_layouts(draw: st.DrawFn) -> tuple[JobSpec, Layout]:
    """Such a job whose peers share experts, with slots for all of them under both cuts."""
    plain, layout = draw(jobs_and_layouts())
    slots, fewest = draw(st.integers(1, 3)), min(plain.pipelines, *layout.workers)
    assert plain.layer_costs is not None
    costs = draw(costs_of_experts(plain.layer_costs, slots * fewest))
    job = layered_job(
        costs, plain.cut, plain.pipelines, plain.microbatches, redundancy=1,
        owners=draw(st.integers(1, 2)), slots=slots,
    )  # fmt: skip
    return replace(job, techniques=plain.techniques), layout


@st.composite
def costs_of_experts(draw: st.DrawFn, costs: LayerCosts, most: int) -> LayerCosts:
    """Layers without experts, and with up to so many of them."""
    experts = draw(st.lists(st.integers(0, most), min_size=costs.count, max_size=costs.count))
    exchange, message = (tuple(draw(st.integers(0, 4)) * (count > 0) for count in experts) for _ in range(2))
    return replace(costs, expert_counts=tuple(experts), exchange=exchange, slot_transfer=message)


def _cut(draw: st.DrawFn, layers: int) -> tuple[int, ...]:
    borders = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=3)))
    return tuple(end - first for first, end in zip([0, *borders], [*borders, layers], strict=True))


@st.composite
def jobs_and_groups(draw: st.DrawFn) -> tuple[JobSpec, GroupedLayout]:
    """Such a job in two groups: another cut, and beside it one worker with all layers or one own pipeline."""
    job, first = draw(jobs_and_layouts())
    units = job.pipelines * job.microbatches
    assume(units > max(first.workers))
    second = draw(st.sampled_from([Layout((sum(first.layers),), (1,)), Layout(job.cut, (1,) * job.stages)]))
    share = draw(st.integers(1, units - max(first.workers)))
    return job, GroupedLayout((first, second), (units - share, share))
