"""What of an op's time was work, and what was waiting that the trace did not set apart.

All workers of a trace have one clock, so an op that starts before its input exists has waited inside: for the
op that makes its input, or for the last peer to begin a reduction. A trace whose run knew what its ops waited
for leaves little to find here.
"""

import numpy as np

from recycle_compiler.analysis.trace_diff.matching import Floats, Measured
from recycle_compiler.analysis.trace_diff.network import NOTHING, Network


def waiting_inside(network: Network, measured: Measured) -> Floats:
    """How long each op of each step waited after it had started."""
    ready = np.full_like(measured.start, -np.inf)
    fed = np.flatnonzero(network.source != NOTHING)
    ready[:, fed] = measured.end[:, network.source[fed]]
    for stage in range(network.stages):
        reductions = network.reduction[network.stage == stage]
        ready[:, reductions] = measured.start[:, reductions].max(axis=1, keepdims=True)
    # One that has ended before that did not wait for it, whatever the plan says.
    waited = (measured.start < ready) & (ready <= measured.end)
    return np.where(waited, ready - measured.start, 0.0)
