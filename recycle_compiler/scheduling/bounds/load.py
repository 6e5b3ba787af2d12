"""The load of a stage: the work of the worker that has most of it, after its ramp-up.

Some worker of a stage with n of them has k = ceil(units / n) micro-batches at least, however work is routed.
Before its first backward it can only run F, at most as many as memory holds, and that backward comes no
sooner than a round trip through the later stages after the first F. What further F do not fill of it is idle;
all else that the worker has to do comes on top.
"""

from typing import NamedTuple

from recycle_compiler.scheduling.bounds.bound import SpanTerm, ends_of_window, share_of, times_of, work_term
from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.ways import round_trip


class Load(NamedTuple):
    name: str = "load"
    claim: str = (
        "some worker has an even share of the micro-batches, and waits for the first one to come back"
    )

    def span(self, problem: Problem, stage: int) -> int:
        return share_of(problem, stage) * sum(times_of(problem, stage)) + ramp_up(problem, stage)

    def terms(self, problem: Problem, stage: int) -> tuple[SpanTerm, ...]:
        ramp = f"ramp-up: a round trip of {{}} less {_ahead(problem, stage)} further F"
        return (
            work_term(problem, stage, share_of(problem, stage)),
            SpanTerm(ramp_up(problem, stage), ramp, (round_trip(problem, stage),)),
            *ends_of_window(problem, stage, stage),
        )


def ramp_up(problem: Problem, stage: int) -> int:
    """Idle time before the first backward of a worker with its share."""
    return max(0, round_trip(problem, stage) - _ahead(problem, stage) * problem.forward[stage])


def _ahead(problem: Problem, stage: int) -> int:
    """F that may follow the first one before its backward."""
    return min(share_of(problem, stage), problem.holdable(stage)) - 1
