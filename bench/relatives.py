"""Small relatives of large jobs, solved exactly: `python -m bench.relatives --seed N --jobs K`.

Where a large plan is above its bound, plan or bound is loose, and nothing solves a large job exactly. So each
job of a series (`bench.random_large`) is made smaller: three to five of its stages, four to six pipelines,
two or three micro-batches, and memory in proportion. As large a part of every stage has failed. Few workers
cannot have exactly that part of them failed, so the times of a stage change with the workers that are left:
stages are as busy beside each other as in the large job. Then times are rounded to an eighth of a mean F.
Compared are

- the optimum, or the least that is known from the whole search and from CP-SAT, and what is proven of it;
- what large plans are made of: rules, turns back and forth in time, and exchanges, on their routes (`tuned`);
- what the whole search of small plans comes to (`searched`);
- the bound that it proves with the MILP, and the bounds of stages, which are all that most large plans have.

CP-SAT has `--work` deterministic seconds for each, in a process of its own, so the output is the same every
time. It is not asked where the whole search meets its bound.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from bench.random_large import GAP_PPM, SEED
from bench.report import Section
from bench.varied_jobs import given_jobs, large_job
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.placement import measure_costs, ranked_placements
from recycle_compiler.scheduling.bounds import lower_bound
from recycle_compiler.scheduling.budget import Budget, Goal, Guard, Noise
from recycle_compiler.scheduling.problem import Problem, problem_of, rerouted
from recycle_compiler.scheduling.routes import numbers_in_turn
from recycle_compiler.scheduling.search import Effort, plan
from recycle_compiler.scheduling.timing import Clock
from recycle_compiler.scheduling.tuning import tune
from recycle_compiler.viz.table import per_stage_text

WORK = 60.0
SHAPES = ((3, 5, 2), (3, 6, 3), (4, 5, 3), (4, 6, 2), (5, 4, 2), (5, 6, 2))
"""Stages, pipelines and micro-batches of relatives."""
_STEP_PART = 8
"""Times are rounded to this part of a mean F: finer ones make an exact solution harder."""

Counts = tuple[int, ...]
Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Compared:
    """Periods of a relative in ticks."""

    label: str
    failed: Counts
    tuned: int
    searched: int
    best: int
    proven: int
    raised: int
    bound: int

    @property
    def settled(self) -> bool:
        return self.best == self.proven


def failed_of(job: JobSpec) -> Counts:
    """The placement of most failures that the job tolerates."""
    job = replace(job, solver=replace(job.solver, gap_ppm=GAP_PPM))
    guard = Guard(job.solver.time_limit_ns)
    costs = measure_costs(job, job.failures, map, guard)
    (counts, _), *_ = ranked_placements(job, job.failures, costs, Effort().shared(job.failures + 1), guard)
    return counts


def relative(job: JobSpec, failed: Counts, shape: Shape) -> tuple[JobSpec, Counts]:
    """The job with so many stages, pipelines and micro-batches, and its failed workers."""
    stages, pipelines, microbatches = shape
    kept = [(2 * index + 1) * job.stages // (2 * stages) for index in range(stages)]
    step = max(1, sum(job.forward) // job.stages // _STEP_PART)
    counts = tuple(
        min(pipelines - 1, (2 * failed[stage] * pipelines + job.pipelines) // (2 * job.pipelines))
        for stage in kept
    )
    share = {
        stage: Fraction((pipelines - count) * job.pipelines, pipelines * (job.pipelines - failed[stage]))
        for stage, count in zip(kept, counts, strict=True)
    }

    def rounded(values: Sequence[int]) -> Counts:
        return tuple((2 * value + step) // (2 * step) * step for value in values)

    def of_ops(values: Sequence[int]) -> Counts:
        scaled = (values[stage] * share[stage].numerator // share[stage].denominator for stage in kept)
        return tuple(max(step, value) for value in rounded(list(scaled)))

    def room(stage: int) -> int | None:
        whole, activation = job.capacity[stage], max(1, job.activation[stage])
        if whole is None:
            return None
        held = whole // activation * stages
        return max(1, (2 * held + job.stages) // (2 * job.stages)) * activation

    small = JobSpec(
        name=job.name,
        stages=stages,
        pipelines=pipelines,
        tensor=job.tensor,
        microbatches=microbatches,
        unit=job.unit,
        memory_unit=job.memory_unit,
        forward=of_ops(job.forward),
        backward_input=of_ops(job.backward_input),
        backward_weight=of_ops(job.backward_weight),
        optimizer=rounded([job.optimizer[stage] for stage in kept]),
        reduce=rounded([job.reduce[stage] for stage in kept]),
        transfer=rounded([job.transfer[stage] for stage in kept[:-1]]),
        activation=tuple(job.activation[stage] for stage in kept),
        kept_for_weight=tuple(job.kept_for_weight[stage] for stage in kept),
        capacity=tuple(room(stage) for stage in kept),
        parameters=(0,) * stages,
        techniques=job.techniques,
        failures=sum(counts),
        solver=job.solver,
    )
    return small, counts


def job_of(seed: int | None, number: int) -> JobSpec:
    """A job of a series, or a given one."""
    return (given_jobs()[number] if seed is None else large_job(seed, number)).job


def compared(seed: int | None, number: int, failed: Counts, shape: Shape, work: float) -> Compared:
    """All periods of one relative."""
    job, counts = relative(job_of(seed, number), failed, shape)
    problem = problem_of(GRAPH_PASSES.run(Target(job, normal_form(counts, job.pipelines))))
    bound = lower_bound(problem).period
    guard, effort = Guard(job.solver.time_limit_ns), Effort()
    clock = Clock(dealt_in_turn(problem), compiled=True)
    tuned = tune(clock, Goal(bound, bound), effort.tuning, Noise(0), Budget(guard, effort.work))
    made = plan(problem, job.solver, effort, Budget(guard, effort.work))
    best, proven = made.timed.period, made.bound.period
    if best > proven:
        task = json.dumps([seed, number, failed, shape, work])
        command = (sys.executable, "-m", "bench.relatives", "--solve", task)
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        proven, best = max(proven, found[0]), min(best, found[1])
    label = f"{job.name}: {job.stages}x{job.pipelines}x{job.microbatches}"
    return Compared(
        label, counts, tuned.timed.period, made.timed.period, best, proven, made.bound.period, bound
    )


def dealt_in_turn(problem: Problem) -> Problem:
    """The problem with the routes of large plans."""
    number = numbers_in_turn(problem.pipelines, problem.microbatches)
    host = np.stack([np.array(workers)[number % len(workers)] for workers in problem.hosts], axis=1)
    return rerouted(problem, problem.hosts, host)


def solve(task: str) -> tuple[int, int]:
    """Lower bound and best period of CP-SAT."""
    from bench.reference.cpsat_reference import reference_optimum

    seed, number, failed, shape, work = json.loads(task)
    found = reference_optimum(*relative(job_of(seed, number), tuple(failed), tuple(shape)), work)
    return found.lower_bound, found.best


def section(those: Sequence[Compared], arguments: str) -> Section:
    """A row for each relative, and one for those that are settled."""
    settled = [one for one in those if one.settled]
    rows = [_row(one) for one in those]
    if settled:
        means = (sum(each(one) for one in settled) / len(settled) for each in _PERIODS)
        rows.append(("mean of settled", "", str(len(settled)), *(f"{mean:+.2%}" for mean in means)))
    return Section(
        title="Small relatives of large jobs",
        command=f"python -m bench.relatives {arguments}".rstrip(),
        words=(
            "How far periods are from the least that is known: of the tuning of large plans, of the whole "
            "search, and of the bounds with and without the MILP. Open: how far that is above what is proven."
        ),
        columns=("relative", "failed", "optimum", "tuned", "searched", "bound", "bounds of stages"),
        rows=tuple(rows),
    )


def _row(one: Compared) -> tuple[str, ...]:
    optimum = "settled" if one.settled else f"open by {one.best / one.proven - 1:.2%}"
    periods = (f"{each(one):+.2%}" for each in _PERIODS)
    return (one.label, per_stage_text(one.failed), optimum, *periods)


_PERIODS: tuple[Callable[[Compared], float], ...] = (
    lambda one: one.tuned / one.best - 1,
    lambda one: one.searched / one.best - 1,
    lambda one: one.raised / one.best - 1,
    lambda one: one.bound / one.best - 1,
)
"""Each from the least period that is known."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the series (default: {SEED})")
    parser.add_argument("--given", action="store_true", help="the given shapes, not a series")
    parser.add_argument("--jobs", type=int, default=4, metavar="K", help="the first K jobs (default: 4)")
    parser.add_argument("--work", type=float, default=WORK, help="deterministic seconds of CP-SAT for each")
    parser.add_argument("--solve", metavar="TASK", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.solve is not None:
        print(json.dumps(solve(arguments.solve)))
        return
    seed = None if arguments.given else arguments.seed
    those: list[Compared] = []
    for number in range(arguments.jobs):
        job = job_of(seed, number)
        failed = failed_of(job)
        for shape in SHAPES:
            if shape[0] <= job.stages:
                those.append(compared(seed, number, failed, shape, arguments.work))
                print("  ".join(_row(those[-1])), flush=True)
    print(section(those, " ".join(sys.argv[1:])).text())


if __name__ == "__main__":
    main()
