"""Our planner alone: `python -m bench.ours_alone JOB P:S,P:S SECONDS` prints one line of JSON."""

import sys
import time
from dataclasses import replace

# Loaded before the clock starts, as the other solvers are.
import recycle_compiler.scheduling.milp.solve  # noqa: F401  # pyright: ignore[reportUnusedImport]
from bench.attempts import Attempt, arguments, print_attempt
from recycle_compiler.ir.failure import FailureSet
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import plan_failed


def attempt(job: JobSpec, failed: FailureSet, seconds: float) -> Attempt:
    """The plan for this failure pattern, with its streams."""
    limited = replace(job, solver=replace(job.solver, time_limit_ns=int(seconds * 1e9), gap_ppm=0))
    began = time.perf_counter()
    claims = plan_failed(limited, failed).claims
    seconds = time.perf_counter() - began
    return Attempt(claims.period, claims.lower_bound, seconds, seconds)


if __name__ == "__main__":
    print_attempt(attempt(*arguments(sys.argv[1:])))
