"""Cost to a plan of op times that vary: mean period in the event engine, against the period as planned."""

from dataclasses import dataclass, replace

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.spread import mean_period
from recycle_compiler.simulator.costs import jitter_of


@dataclass(frozen=True, slots=True)
class SpreadCost:
    """Mean periods in ticks."""

    job: JobSpec
    mean: float
    deviation: float
    by_microbatch: float
    """With micro-batches of unlike length alone."""
    by_chance: float
    """With chance alone."""


def spread_cost(plan: Streams) -> SpreadCost | None:
    """None where op times do not vary."""
    job = plan.job
    if not job.varies:
        return None
    jitter = jitter_of(job, job.solver.seed)
    mean, deviation = mean_period(plan, jitter)
    by_microbatch = mean_period(plan, replace(jitter, variation=0.0)) if job.spread_ppm else None
    by_chance = mean_period(plan, replace(jitter, by_microbatch=0.0)) if job.jitter_ppm else None
    still = float(plan.claims.period)
    return SpreadCost(
        job,
        mean,
        deviation,
        still if by_microbatch is None else by_microbatch.mean,
        still if by_chance is None else by_chance.mean,
    )
