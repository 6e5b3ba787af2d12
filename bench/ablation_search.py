"""Worth of every proposer of the search and of every bound: `python -m bench.ablation_search --seed N`.

Random jobs of `bench.varied_jobs`, half of them for many workers, are planned with the whole search, then
once without each proposer. Most jobs need none: those are left out whose quick plan is within 1 % already.
Then the best bound of every job is compared with what it is without each kind.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.report import Section
from bench.varied_jobs import VariedJob, large_job, varied_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.placement import measure_costs, ranked_placements
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.bounds import stage_bounds
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.problem import Problem, problem_of
from recycle_compiler.scheduling.search import Effort, plan

SEED = 39
JOBS = 24
GAP_PPM = 10_000
WORK = 100_000_000
"""Visits for a plan."""
PROPOSERS = (
    "mirror", "changes", "exchanges", "moves",
    "few pipelines", "flows", "timetables", "routes", "tabu", "disturbed times", "milp", "relaxation",
)  # fmt: skip
WHOLE = "(nothing)"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan made without one proposer."""

    without: str
    number: int
    gap: float
    cpu_seconds: float


def job_of(seed: int, number: int) -> VariedJob:
    """Jobs of any size, and in turn large ones of which a sixth failed, on stages that a bundle chooses."""
    if number % 2 == 0:
        return varied_job(seed, number // 2)
    varied = large_job(seed, number // 2)
    job = varied.job
    failures, guard = job.failures * 2 // 3, Guard(job.solver.time_limit_ns)
    if failures == 0:
        return varied
    costs = measure_costs(job, failures, map, guard)
    (counts, _), *_ = ranked_placements(job, failures, costs, Effort(), guard)
    return replace(varied, failed=normal_form(counts, job.pipelines))


def _problem(seed: int, number: int) -> tuple[VariedJob, Problem]:
    varied = job_of(seed, number)
    return varied, problem_of(GRAPH_PASSES.run(Target(varied.job, varied.failed)))


def planned(task: tuple[int, int, int]) -> list[Outcome]:
    """The plans of one job with everything, and without each proposer; none if it needs no search."""
    seed, number, work = task
    varied, problem = _problem(seed, number)
    options = replace(varied.job.solver, gap_ppm=GAP_PPM)
    found: list[Outcome] = []
    quick = plan(problem, options, Effort().quick(), Budget(Guard(options.time_limit_ns)))
    if quick.timed.period <= quick.bound.period * (1 + GAP_PPM / 1e6):
        return found
    for without in (WHOLE, *PROPOSERS):
        began = time.process_time()
        budget = Budget(Guard(options.time_limit_ns), work, without=frozenset((without,)))
        made = plan(problem, options, Effort(), budget)
        gap = made.timed.period / made.bound.period - 1
        found.append(Outcome(without, number, gap, time.process_time() - began))
    return found


def bounds_of(seed: int, number: int) -> dict[str, int]:
    """The best bound of every kind."""
    _, problem = _problem(seed, number)
    best: dict[str, int] = {}
    for stage in range(problem.chunks):
        for bound in stage_bounds(problem, stage):
            kind = bound.reason.partition(" of ")[0]
            best[kind] = max(best.get(kind, 0), bound.period)
    return best


def section(outcomes: Sequence[Outcome], seed: int) -> Section:
    """A row for each proposer."""
    rows: list[tuple[str, ...]] = []
    plans = len({one.number for one in outcomes})
    for without in (WHOLE, *PROPOSERS):
        those = [one for one in outcomes if one.without == without]
        gaps = [one.gap for one in those]
        rows.append(
            (
                without,
                f"{sum(gaps) / len(gaps):.3%}",
                f"{max(gaps):.2%}",
                f"{sum(gap <= GAP_PPM / 1e6 for gap in gaps) / len(gaps):.0%}",
                f"{sum(one.cpu_seconds for one in those):.0f}",
            )
        )
    return Section(
        title="Search without each proposer",
        command=f"python -m bench.ablation_search --seed {seed}",
        words=f"{plans} random jobs that need a search and that it was not tuned on.",
        columns=("without", "mean gap", "worst gap", "within 1 %", "CPU seconds"),
        rows=tuple(rows),
    )


def section_of_bounds(bounds: Sequence[dict[str, int]], seed: int) -> Section:
    """A row for each kind of bound: how far the best of the others lies below all."""
    kinds = sorted({kind for each in bounds for kind in each})
    rows: list[tuple[str, ...]] = []
    for kind in kinds:
        lost = [
            1 - max(period for other, period in each.items() if other != kind) / max(each.values())
            for each in bounds
        ]
        rows.append(
            (kind, f"{sum(loss > 0 for loss in lost)}", f"{sum(lost) / len(lost):.3%}", f"{max(lost):.2%}")
        )
    return Section(
        title="Bounds without each kind",
        command=f"python -m bench.ablation_search --seed {seed} --bounds",
        words=f"{len(bounds)} random jobs: how much lower the best bound is without each kind.",
        columns=("without", "jobs", "mean", "most"),
        rows=tuple(rows),
    )


def measured(seed: int, jobs: int, work: int, processes: int = 1) -> Iterator[list[Outcome]]:
    """The plans of each job, as they are made."""
    with running(processes) as run:
        yield from run(planned, [(seed, number, work) for number in range(jobs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the series (default: {SEED})")
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="K", help=f"(default: {JOBS})")
    parser.add_argument("--work", type=int, default=WORK, help=f"visits for a plan (default: {WORK:,})")
    parser.add_argument("--bounds", action="store_true", help="the bounds only")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    if not arguments.bounds:
        outcomes: list[Outcome] = []
        for found in measured(arguments.seed, arguments.jobs, arguments.work, arguments.processes):
            if not found:
                continue
            outcomes += found
            gaps = " ".join(f"{one.without}={one.gap:.2%}" for one in found if one.gap != found[0].gap)
            print(f"{found[0].number}: {found[0].gap:.2%} {gaps}", flush=True)
        if outcomes:
            print(section(outcomes, arguments.seed).text())
    bounds = [bounds_of(arguments.seed, number) for number in range(arguments.jobs)]
    print(section_of_bounds(bounds, arguments.seed).text())


if __name__ == "__main__":
    main()
