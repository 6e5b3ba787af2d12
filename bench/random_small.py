"""Small random jobs beside CP-SAT: `python -m bench.random_small --jobs K --work SECONDS`.

Jobs of up to 6 stages, 4 pipelines and 12 micro-batches with transfers and tight memory (`small_job` of
`bench.reference.random_jobs`). CP-SAT has so many deterministic seconds for each, in a process of its own,
because ortools and highspy cannot share one. It chooses routes freely, as we do. With `--open` it is asked
only where our plan is not proven optimal: nothing is shorter than that.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.reference.random_jobs import small_job
from bench.report import Section, percent
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.viz.table import per_stage_text

WORK = 30.0
_NEAR = 1.01


@dataclass(frozen=True, slots=True)
class Compared:
    """Periods of one job, in ticks."""

    number: int
    label: str
    ours: int
    bound: int
    """That we prove."""
    best: int
    """That CP-SAT found."""
    cpu_seconds: float

    @property
    def excess(self) -> float:
        """By how much ours is above what CP-SAT found; below zero where it is shorter."""
        return self.ours / self.best - 1


def compared(number: int, work: float, only_open: bool = False) -> Compared:
    """One job, planned by us and by CP-SAT; by us alone where that is proven optimal and `only_open`."""
    job, failed = small_job(number)
    began = time.process_time()
    claims = plan_failed(job, normal_form(failed, job.pipelines), effort=Effort()).claims
    seconds = time.process_time() - began
    best = claims.period
    if not only_open or best > claims.lower_bound:
        command = (sys.executable, "-m", "bench.random_small", "--solve", str(number), "--work", str(work))
        best = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    label = f"{job.stages}x{job.pipelines}x{job.microbatches}, {per_stage_text(failed)} failed"
    return Compared(number, label, claims.period, claims.lower_bound, best, seconds)


def solve(number: int, work: float) -> int:
    """The best period that CP-SAT finds for a job."""
    from bench.reference.cpsat_reference import reference_optimum

    return reference_optimum(*small_job(number), work).best


def section(jobs: Sequence[Compared], arguments: str) -> Section:
    """A row for all jobs, and one for each that CP-SAT has a shorter schedule of."""
    behind = sorted((one for one in jobs if one.excess > 0), key=lambda one: -one.excess)
    total = (
        f"all {len(jobs)}",
        percent(sum(one.excess <= 0 for one in jobs) / len(jobs)),
        percent(sum(one.ours <= one.best * _NEAR for one in jobs) / len(jobs)),
        f"{max(one.excess for one in jobs):.2%}",
        percent(sum(one.ours == one.bound for one in jobs) / len(jobs)),
        f"{sum(one.cpu_seconds for one in jobs):.0f}",
    )
    return Section(
        title="Small jobs beside CP-SAT",
        command=f"python -m bench.random_small {arguments}".rstrip(),
        words="Random jobs with tight memory: how often our period is no longer than what CP-SAT finds.",
        columns=("job", "as short", "within 1 %", "above", "optimal", "our CPU seconds"),
        rows=(
            total,
            *(
                (f"{one.number}: {one.label}", "", "", f"{one.excess:.2%}", "", f"{one.cpu_seconds:.1f}")
                for one in behind
            ),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50, metavar="K", help="the first K jobs (default: 50)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first job")
    parser.add_argument("--work", type=float, default=WORK, help="deterministic seconds of CP-SAT for a job")
    parser.add_argument("--solve", type=int, metavar="N", help="print what CP-SAT finds for one job")
    parser.add_argument("--open", action="store_true", help="only for plans that are not proven optimal")
    arguments = parser.parse_args()
    if arguments.solve is not None:
        print(solve(arguments.solve, arguments.work))
        return
    jobs: list[Compared] = []
    for number in range(arguments.first, arguments.first + arguments.jobs):
        jobs.append(compared(number, arguments.work, arguments.open))
        print(f"{number}: {jobs[-1].label}: {jobs[-1].excess:+.2%}", flush=True)
    print(section(jobs, " ".join(sys.argv[1:])).text())


if __name__ == "__main__":
    main()
