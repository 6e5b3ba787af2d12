"""Plans for exact failure patterns, made when they are needed: `python -m bench.on_demand`."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

from bench.measure import RECYCLEC, run
from bench.report import Section, job_path, percent
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import plan_failed

TITLE = "On demand"
NAMES = ("scale-2048", "scale-2048-roomy")
COUNTS = (1, 2, 3, 5, 8, 13, 26, 40, 52, 64)
"""Failed workers of the patterns; 64 is a quarter of them all."""
FROM_THE_SHELL = 3
"""Patterns that are also planned by a command of their own."""


def section() -> Section:
    """Two rows for each job: the command, and the function inside a process that has the job loaded."""
    return Section(
        title=TITLE,
        command="python -m bench.on_demand",
        words=(
            f"Random failure patterns of {COUNTS[0]} to {COUNTS[-1]} workers, no worker moves to another "
            "stage. `first` is the first run after installing, when the inner loops are compiled and kept."
        ),
        columns=("job", "how", "patterns", "first s", "median s", "worst s", "median gap", "worst gap"),
        rows=tuple(row for name in NAMES for row in _rows(name)),
    )


def pattern(job: JobSpec, count: int, seed: int) -> FailureSet:
    """Random failed workers that leave every stage one that is alive."""
    random = Random(seed)
    grid = [(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages)]
    while True:
        failed = failure_set(random.sample(grid, count))
        counts = [sum(worker.stage == stage for worker in failed) for stage in range(job.stages)]
        if max(counts) < job.pipelines:
            return failed


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    job = load_job(str(job_path(name))).spec
    patterns = [pattern(job, count, seed) for seed, count in enumerate(COUNTS)]
    with tempfile.TemporaryDirectory() as empty:
        first = _from_the_shell(name, patterns[0], {"NUMBA_CACHE_DIR": empty})
    shell = [_from_the_shell(name, failed) for failed in patterns[:: len(patterns) // FROM_THE_SHELL]]
    yield (
        name,
        "recyclec plan",
        str(len(shell)),
        f"{first:.2f}",
        f"{median(shell):.2f}",
        f"{max(shell):.2f}",
        "-",
        "-",
    )
    # The first call loads the compiled loops, as the process of a coordinator has done long before.
    plan_failed(job, patterns[-1])
    inside: list[float] = []
    gaps: list[float] = []
    for failed in patterns:
        began = time.perf_counter()
        program = plan_failed(job, failed)
        inside.append(time.perf_counter() - began)
        gaps.append(program.claims.gap)
    yield (
        name,
        "in a process",
        str(len(inside)),
        "-",
        f"{median(inside):.2f}",
        f"{max(inside):.2f}",
        percent(median(gaps)),
        percent(max(gaps)),
    )


def _from_the_shell(name: str, failed: FailureSet, environment: dict[str, str] | None = None) -> float:
    words = ",".join(f"{worker.pipeline}:{worker.stage}" for worker in failed)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "bench.plan"
        command = [RECYCLEC, "--quiet", "plan", job_path(name), "--failed", words, "-o", plan]
        return run(command, environment).seconds


if __name__ == "__main__":
    print(section().text())
