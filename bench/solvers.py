"""Ours beside HiGHS alone and CP-SAT alone, with the same time limit: `python -m bench.solvers [SECONDS]`."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from bench.attempts import Attempt, read_attempt
from bench.measure import CommandError, run
from bench.report import Section, job_path
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec

TITLE = "Ours beside exact solvers"
CASES = (
    ("even-3x2x4", "0:1"),
    ("figure3", "1:2"),
    ("even-4x8x16", "1:2"),
    ("even-4x8x16", "1:2,5:1"),
)
"""Jobs and failed workers."""
SOLVERS = {
    "ours": ("bench.ours_alone",),
    "HiGHS": ("bench.highs_alone",),
    "CP-SAT, our routes": ("bench.cpsat_alone", "routed"),
    "CP-SAT, free routes": ("bench.cpsat_alone",),
}
"""The module that runs each, and options after the job, the failed workers and the time limit."""
SECONDS = 60.0


def section(seconds: float = SECONDS) -> Section:
    """One row for each case and solver."""
    return Section(
        title=TITLE,
        command="python -m bench.solvers" + (f" {seconds:g}" if seconds != SECONDS else ""),
        words=(
            f"One failure pattern, {seconds:g} s for each solver, in a process of its own; the clock starts "
            "when everything is loaded. HiGHS gets the model that our planner uses on small jobs, with our "
            "routes (its bound holds for these), but no dive, no bound and no schedule to start from. CP-SAT "
            "has a model of its own and both cores. `reached` is when the best period was found."
        ),
        columns=("job", "failed", "solver", "period", "bound", "reached s", "ended s"),
        rows=tuple(row for name, failed in CASES for row in _rows(name, failed, seconds)),
    )


def _rows(name: str, failed: str, seconds: float) -> Iterator[tuple[str, ...]]:
    job = load_job(str(job_path(name))).spec
    for solver, (module, *options) in SOLVERS.items():
        if solver.startswith("CP-SAT") and find_spec("ortools") is None:
            yield (name, failed, solver, "not installed", "-", "-", "-")
            continue
        command = [sys.executable, "-m", module, job_path(name), failed, str(seconds), *options]
        try:
            yield (name, failed, solver, *_cells(job, read_attempt(run(command).stdout)))
        except CommandError as error:
            # A solver may give up without an answer, as when memory runs out.
            print(f"bench.solvers: {error}", file=sys.stderr)
            yield (name, failed, solver, "failed", "-", "-", "-")


def _cells(job: JobSpec, attempt: Attempt) -> tuple[str, ...]:
    ticks = job.ticks_per_unit
    return (
        "none" if attempt.period is None else f"{attempt.period / ticks:g}",
        f"{attempt.bound / ticks:g}",
        "-" if attempt.reached is None else f"{attempt.reached:.1f}",
        f"{attempt.seconds:.1f}",
    )


if __name__ == "__main__":
    print(section(*map(float, sys.argv[1:2])).text())
