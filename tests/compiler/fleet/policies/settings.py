"""Small settings for policies."""

from dataclasses import replace

from hypothesis import strategies as st

from recycle_compiler.fleet.policy import Change, Worker
from recycle_compiler.fleet.setting import ChangeCosts, FleetSetting, Known, make_setting
from recycle_compiler.ir.job import JobSpec
from tests.support.jobs import unit_job

GIB = 1 << 30
TRACES = st.sampled_from(
    [
        "every 20m",
        "every 20m repair 50m",
        "poisson mtbf=20h repair=1h node=2:20% rack=6:20%",
        "poisson mtbf=3h repair=2m spares=3",
        "every 3s repair 17s",
    ]
)
"""Of all kinds, in words."""


def hours_of(words: str) -> float:
    """As many as a test has time for."""
    return 0.5 if "every 3s" in words else 12


def unit_setting(stages: int = 4, pipelines: int = 3, microbatches: int = 6, layers: int = 2) -> FleetSetting:
    """Every op takes one slot, a slot is a second, memory is not limited."""
    job = unit_job(stages, pipelines, microbatches)
    return make_setting(job, (), Known(layers=(layers,) * stages, costs=ChangeCosts()))


def sized_job(stages: int, pipelines: int, capacity: int, parameters: int) -> JobSpec:
    """The same with memory in bytes: an activation of one GiB, capacity and parameters in GiB."""
    return replace(
        unit_job(stages, pipelines, 6),
        memory_unit="byte",
        activation=(GIB,) * stages,
        kept_for_weight=(GIB,) * stages,
        capacity=(capacity * GIB,) * stages,
        parameters=(parameters * GIB,) * stages,
    )


def failure(at: float, failed: set[Worker], down: set[Worker]) -> Change:
    """These fail; `down` is every worker that is, with them."""
    return Change(at, frozenset(failed), frozenset(), frozenset(down), 0)


def comeback(at: float, returned: set[Worker], down: set[Worker]) -> Change:
    """These come back; `down` is who still is not."""
    return Change(at, frozenset(), frozenset(returned), frozenset(down), 0)
