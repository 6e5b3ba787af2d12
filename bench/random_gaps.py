"""Gaps between plans and their bounds on jobs that nobody tuned for: `python -m bench.random_gaps`.

200 jobs of `bench.varied_jobs`, each with one plan of full effort. The search may be tuned on the jobs of
`TUNING_SEED`, never on those of `SEED`, which the report is about. The first jobs of a series are a sample of
it: `--only 40` takes a fifth of the time.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from bench.ablation_search import PROPOSERS
from bench.report import Section, percent
from bench.varied_jobs import LEAST_OPS, MOST_OPS, varied_job
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.scheduling.search import Effort, plan
from recycle_compiler.viz.table import per_stage_text

TITLE = "Gaps on random jobs"
SEED = 2026
"""Of the jobs that are reported on."""
TUNING_SEED = 1
"""Of jobs that the search may be tuned on."""
JOBS = 200
GAP = 0.01
"""A plan this close to its bound is good enough: all effort goes into those that are further away."""
CLASSES = (LEAST_OPS, 2_000, 20_000, MOST_OPS)
WITHIN = (0.001, 0.01, 0.03)
_WORST = 10


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of one plan."""

    number: int
    label: str
    failed: str
    ops: int
    period: int
    bound: int
    reason: str
    cpu_seconds: float

    @property
    def gap(self) -> float:
        return self.period / self.bound - 1


def planned(task: tuple[int, int, float, frozenset[str]]) -> Planned:
    """Plan one job; its graph is made before the clock starts."""
    seed, number, gap, without = task
    varied = varied_job(seed, number)
    problem = problem_of(GRAPH_PASSES.run(Target(varied.job, varied.failed)))
    options = replace(varied.job.solver, gap_ppm=round(gap * 1_000_000))
    began = time.process_time()
    effort = Effort()
    found = plan(
        problem, options, effort, Budget(Guard(10 * options.time_limit_ns), effort.work, without=without)
    )
    return Planned(
        number,
        varied.label,
        per_stage_text(varied.failed_per_stage),
        problem.ops,
        found.timed.period,
        found.bound.period,
        found.bound.reason,
        time.process_time() - began,
    )


def measured(
    seed: int,
    numbers: Sequence[int],
    gap: float = GAP,
    processes: int = 1,
    without: frozenset[str] = frozenset(),
) -> Iterator[Planned]:
    """The plans of these jobs of a series, as they are made; these proposers of orders are left out."""
    with running(processes) as run:
        yield from run(planned, [(seed, number, gap, without) for number in numbers])


def section(seed: int = SEED, numbers: Sequence[int] = range(JOBS), gap: float = GAP) -> Section:
    """One row for each class of sizes, and one for all."""
    return _by_size(list(measured(seed, numbers, gap)), seed)


def _by_size(plans: Sequence[Planned], seed: int) -> Section:
    groups = [
        (f"{least:,} to {most:,}", [one for one in plans if least <= one.ops < most + (most == MOST_OPS)])
        for least, most in pairwise(CLASSES)
    ]
    return Section(
        title=TITLE,
        command="python -m bench.random_gaps" + (f" --seed {seed}" if seed != SEED else ""),
        words=(
            f"{len(plans)} random jobs, one plan each: 2 to 64 stages and pipelines, equal to very uneven "
            "times, transfers from none to an F, optimizer and reduction from nothing to 15 F, memory from "
            "1F1B's to no limit, none to a quarter of the workers failed anywhere. A gap is how far a period "
            "is above its proven lower bound; it is what the plan and the bound together leave open."
        ),
        columns=(
            "ops", "plans", *(f"gap <= {share:.1%}" for share in WITHIN),
            "mean gap", "worst gap", "CPU seconds",
        ),
        rows=tuple(_row(name, group) for name, group in [*groups, ("all", list(plans))] if group),
    )  # fmt: skip


def _row(name: str, plans: Sequence[Planned]) -> tuple[str, ...]:
    gaps = [one.gap for one in plans]
    return (
        name,
        str(len(plans)),
        *(percent(sum(gap <= share for gap in gaps) / len(plans)) for share in WITHIN),
        f"{sum(gaps) / len(gaps):.2%}",
        f"{max(gaps):.2%}",
        f"{sum(one.cpu_seconds for one in plans):.0f}",
    )


def worst(plans: Sequence[Planned]) -> Section:
    """Those that stay furthest above their bounds, and how they are shaped."""
    chosen = sorted(plans, key=lambda one: -one.gap)[:_WORST]
    rows = (
        (one.label, f"{one.gap:.2%}", f"{one.ops:,}", str(one.number), one.reason, one.failed)
        for one in chosen
    )
    columns = ("job", "gap", "ops", "number", "bound", "failed per stage")
    return Section("Worst", "python -m bench.random_gaps", "", columns, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="of the series (default: the reported one)")
    parser.add_argument("--only", type=int, default=JOBS, metavar="N", help="the first N jobs (default: all)")
    parser.add_argument("--number", type=int, nargs="+", help="these jobs instead")
    parser.add_argument("--gap", type=float, default=GAP, help="good enough, as a share of the bound")
    parser.add_argument(
        "--without", nargs="+", default=(), choices=PROPOSERS, help="leave these proposers out"
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each plan instead")
    arguments = parser.parse_args()
    numbers = arguments.number or range(arguments.only)
    plans: list[Planned] = []
    without = frozenset[str](arguments.without)
    for one in measured(arguments.seed, numbers, arguments.gap, arguments.processes, without):
        plans.append(one)
        if arguments.json:
            print(json.dumps({**asdict(one), "gap": one.gap}), flush=True)
    if arguments.json:
        return
    print(_by_size(plans, arguments.seed).text())
    print(worst(plans).text())


if __name__ == "__main__":
    main()
