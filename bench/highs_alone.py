"""HiGHS alone: `python -m bench.highs_alone JOB P:S,P:S SECONDS` prints one line of JSON.

The model says whether a period can be met, so periods are tried: from the load of the busiest worker up, in
growing steps, until one is met, then between the last one refuted and that. No dive and no bound of ours
takes part, only the branch and bound of the solver.
"""

import sys
import time

from bench.attempts import Attempt, arguments, print_attempt
from recycle_compiler.ir.failure import FailureSet
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.milp.solve import Limits, Stop, solve
from recycle_compiler.scheduling.problem import Problem, problem_of

_SHARE = 4
"""One period may take this part of the time that is left."""


def attempt(job: JobSpec, failed: FailureSet, seconds: float) -> Attempt:
    """The least period HiGHS finds with the routing that our plans use."""
    began = time.perf_counter()
    graph = GRAPH_PASSES.run(Target(job, failed))
    problem = problem_of(graph)
    refuted = _load(problem) // problem.grain - 1
    unclear = refuted
    found: int | None = None
    reached: float | None = None
    step = 1
    while (left := began + seconds - time.perf_counter()) > 0.1:
        target = unclear + step if found is None else (unclear + found) // 2
        if found is not None and target == unclear:
            break
        stop = _try(problem, target, left / _SHARE)
        if stop is Stop.FOUND:
            found, reached = target, time.perf_counter() - began
            continue
        if stop is Stop.REFUTED and refuted == unclear:
            refuted = target
        unclear, step = target, step * 2
    ticks = None if found is None else found * problem.grain
    return Attempt(ticks, (refuted + 1) * problem.grain, reached, time.perf_counter() - began)


def _try(problem: Problem, target: int, seconds: float) -> Stop:
    limits = Limits(counts=10**9, relaxations=0, nodes=10**9)
    return solve(problem, target * problem.grain, limits, Budget(Guard(int(seconds * 1e9)))).stop


def _load(problem: Problem) -> int:
    """Work of the busiest worker, in ticks: a period that is surely not too long."""
    times = zip(problem.hosts, problem.forward, problem.backward, problem.weight, strict=True)
    return max(-(-problem.units // len(hosts)) * (f + b + w) for hosts, f, b, w in times)


if __name__ == "__main__":
    print_attempt(attempt(*arguments(sys.argv[1:])))
