"""Gaps and CPU time of bundles for many workers: `python -m bench.random_large --seed N --jobs K`.

Random jobs of 256 to 2,048 workers (`large_job` of `bench.varied_jobs`), a quarter of which may fail, with
1 % as good enough; `--given` takes four shapes that people would write instead. A bundle has a plan for every
number of failures, each with the work that it has there; `--plans` makes a sample of them, at equal
distances, and the CPU seconds of a bundle are estimated from it.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.report import Section, percent
from bench.varied_jobs import given_jobs, large_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import plan_count
from recycle_compiler.planner.placement import measure_costs, place_ahead
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.viz.table import per_stage_text

SEED = 7
GAP_PPM = 10_000
WITHIN = 0.01


@dataclass(frozen=True, slots=True)
class Made:
    """A plan of a bundle."""

    failures: int
    failed: str
    gap: float
    reason: str
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """Some plans of a bundle."""

    number: int
    label: str
    ops: int
    failures: int
    """Up to so many are planned for in the whole bundle."""
    shared_seconds: float
    """CPU seconds for what all plans begin with."""
    plans: tuple[Made, ...]

    @property
    def bundle_seconds(self) -> float:
        each = sum(one.cpu_seconds for one in self.plans) / len(self.plans)
        return self.shared_seconds + each * (self.failures + 1)

    @property
    def worst(self) -> Made:
        return max(self.plans, key=lambda one: one.gap)


def sampled(task: tuple[int | None, int, int]) -> Sampled:
    """So many plans of the bundle of one job."""
    seed, number, plans = task
    varied = given_jobs()[number] if seed is None else large_job(seed, number)
    solver = replace(varied.job.solver, gap_ppm=GAP_PPM)
    job = replace(varied.job, solver=solver)
    guard = Guard(solver.time_limit_ns)
    began = time.process_time()
    costs = place_ahead(job, measure_costs(job, job.failures, map, guard), job.failures, map, guard)
    shared = time.process_time() - began
    effort = Effort().shared(job.failures + 1)
    made: list[Made] = []
    for failures in _sample(job, plans):
        began = time.process_time()
        plan = plan_count(job, failures, costs, guard, effort=effort)
        claims, seconds = plan.claims, time.process_time() - began
        counts = [0] * job.stages
        for worker in plan.failed:
            counts[worker.stage] += 1
        made.append(Made(failures, per_stage_text(tuple(counts)), claims.gap, claims.reason, seconds))
    return Sampled(number, varied.label, varied.ops, job.failures, shared, tuple(made))


def _sample(job: JobSpec, plans: int) -> Iterator[int]:
    """Numbers of failures from none to all, at equal distances."""
    most = min(plans, job.failures + 1)
    yield from (job.failures * index // max(1, most - 1) for index in range(most))


def measured(seed: int | None, jobs: int, plans: int, processes: int = 1) -> Iterator[Sampled]:
    """The first jobs of a series, or the given ones, as they are done."""
    with running(processes) as run:
        yield from run(sampled, [(seed, number, plans) for number in range(jobs)])


def section(jobs: Sequence[Sampled], arguments: str) -> Section:
    """A row for each job, and one for all."""
    ordered = sorted(jobs, key=lambda one: -one.worst.gap)
    every = [one for job in ordered for one in job.plans]
    seconds = sum(one.bundle_seconds for one in ordered) / len(ordered)
    total = ("all", "", *_gaps(every), f"{seconds:.0f}", "", "", "")
    return Section(
        title="Bundles for many workers",
        command=f"python -m bench.random_large {arguments}",
        words=(
            "Random jobs of 256 to 2,048 workers that tolerate a quarter of them; a sample of the plans of "
            "each bundle, gaps above their bounds, and the CPU seconds of a bundle, estimated from it."
        ),
        columns=(
            "job", "ops", "plans", "within 1 %", "worst", "CPU s of a bundle", "worst with",
            "bound there", "failed",
        ),
        rows=(
            *(
                (
                    f"{one.number}: {one.label}",
                    f"{one.ops:,}",
                    *_gaps(one.plans),
                    f"{one.bundle_seconds:.0f}",
                    str(one.worst.failures),
                    one.worst.reason,
                    one.worst.failed,
                )
                for one in ordered
            ),
            total,
        ),
    )  # fmt: skip


def _gaps(plans: Sequence[Made]) -> tuple[str, str, str]:
    within = sum(one.gap <= WITHIN for one in plans) / len(plans)
    return str(len(plans)), percent(within), f"{max(one.gap for one in plans):.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the series (default: {SEED})")
    parser.add_argument("--given", action="store_true", help="the given shapes, not a series")
    parser.add_argument("--jobs", type=int, default=10, metavar="K", help="the first K jobs (default: 10)")
    parser.add_argument(
        "--plans", type=int, default=1 << 20, metavar="N", help="so many plans of a bundle (default: all)"
    )
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    seed = None if arguments.given else arguments.seed
    count = min(arguments.jobs, len(given_jobs())) if arguments.given else arguments.jobs
    jobs: list[Sampled] = []
    for one in measured(seed, count, arguments.plans, arguments.processes):
        jobs.append(one)
        print(f"{one.number}: {one.label}: {one.bundle_seconds:.0f} s", flush=True)
    print(section(jobs, " ".join(sys.argv[1:])).text())


if __name__ == "__main__":
    main()
