"""Settle random jobs and write what is proven: `python -m bench.reference.make_optima FILE --jobs 2000`.

Goes on where the file ends. With --retry it spends more work on the lines that are not settled instead.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from bench.reference.cpsat_reference import reference_optimum
from bench.reference.optima import Optimum, load_optima, print_optimum
from bench.reference.random_jobs import random_job, tight_job
from recycle_compiler.ir.job import JobSpec


def main() -> None:
    """Read the arguments and extend or improve the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=2_000, help="seeds 0 up to this many")
    parser.add_argument("--work", type=float, default=2.0, help="deterministic seconds of the solver per job")
    parser.add_argument("--retry", action="store_true", help="work on unsettled lines again")
    parser.add_argument("--tight", action="store_true", help="jobs with tight memory and long transfers")
    arguments = parser.parse_args()
    if arguments.retry:
        _retry(arguments.file, arguments.work)
    else:
        draw = tight_job if arguments.tight else random_job
        _extend(arguments.file, draw, arguments.jobs, arguments.work)


def _extend(
    path: Path, draw: Callable[[int], tuple[JobSpec, tuple[int, ...]]], jobs: int, work: float
) -> None:
    done = max((entry.seed for entry in load_optima(path)), default=-1) if path.exists() else -1
    for seed in range(done + 1, jobs):
        job, failed = draw(seed)
        outcome = reference_optimum(job, failed, work)
        with path.open("a", encoding="ascii") as file:
            file.write(print_optimum(Optimum(seed, job, failed, outcome.lower_bound, outcome.best)))


def _retry(path: Path, work: float) -> None:
    entries = list(load_optima(path))
    for index, entry in enumerate(entries):
        if entry.optimum is not None:
            continue
        outcome = reference_optimum(entry.job, entry.failed_per_stage, work)
        lower, best = max(entry.lower_bound, outcome.lower_bound), min(entry.best, outcome.best)
        entries[index] = Optimum(entry.seed, entry.job, entry.failed_per_stage, lower, best)
        aside = path.with_suffix(".new")
        aside.write_text("".join(map(print_optimum, entries)), encoding="ascii")
        aside.replace(path)


if __name__ == "__main__":
    main()
