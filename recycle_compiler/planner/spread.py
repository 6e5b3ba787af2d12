"""Plans of jobs whose op times vary: judged by their mean over drawn times, not by the times as planned.

Several plans are made, each from another seed, and run in the event engine with the same draws. The one with
the least mean period is taken; its claims stay those of the times as planned, which verifiers check.
"""

from collections.abc import Iterable
from typing import NamedTuple

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.scheduling.budget import Sizes
from recycle_compiler.simulator.costs import Jitter, jitter_of
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle

CANDIDATES = 3
"""Plans that are made where times vary; the first is what would be made if they did not."""
_ITERATIONS = 33
"""The mean of so many less one counts."""


class MeanPeriod(NamedTuple):
    """Of a plan in the engine, in ticks."""

    mean: float
    deviation: float


def mean_period(plan: Streams, jitter: Jitter) -> MeanPeriod:
    """Ticks of an iteration with op times that vary so."""
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    outcome = simulate(bundle, 0, iterations=_ITERATIONS, jitter=jitter, keep_ops=False)
    return MeanPeriod(outcome.period, outcome.spread)


def tries_seeds(job: JobSpec) -> bool:
    """True if several plans of a job are made."""
    return job.varies and 3 * job.workers * job.microbatches <= Sizes.LARGE


def least_mean(plans: Iterable[Streams]) -> Streams:
    """The plan with the least mean period; the first of equals."""
    found = list(plans)
    jitter = jitter_of(found[0].job, found[0].job.solver.seed)
    return min(found, key=lambda plan: mean_period(plan, jitter).mean)
