"""Jobs in layers for tests: every layer alike unless a test says otherwise."""

from dataclasses import replace

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import Layout, job_of_layout
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
) -> JobSpec:
    """A job that starts with this cut."""
    plain = unit_job(len(cut), pipelines, microbatches)
    free = replace(plain, cut=cut, layer_costs=costs, redundancy=redundancy)
    own = job_of_layout(free, Layout(cut, (pipelines,) * len(cut)))
    return replace(own, pipelines=pipelines, microbatches=microbatches, layer_costs=costs, failures=failures)
