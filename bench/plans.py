"""Whole bundles, compiled by the real command: `python -m bench.plans [names]`."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import MIB, RECYCLEC, run
from bench.report import Section, job_path, percent
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.scheduling.problem import problem_of
from recycle_compiler.viz.table import per_stage_text
from recycle_runtime.plan.bundle import Bundle

TITLE = "Bundles"
NAMES = (
    "figure3",
    "scale-2048",
    "scale-2048-roomy",
    "deep-64",
    "wide-16384",
    "even-8x4x16",
    "even-8x4x16-1.5x",
    "even-8x4x16-2x",
)


class Compiled(NamedTuple):
    """Result of one `recyclec compile`."""

    plans: list[dict[str, Any]]
    """As `--json` prints them."""
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    bundle_bytes: int
    instructions: int
    """In all streams of all plans."""


@cache
def compiled(job: Path, *options: str) -> Compiled:
    """Compile a job in a process of its own, once."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bench.plan"
        made = run([RECYCLEC, "--quiet", "compile", job, "-o", bundle, "--json", *options])
        size, instructions = bundle.stat().st_size, Bundle.read(bundle).instructions
    plans = json.loads(made.stdout)["plans"]
    return Compiled(plans, made.seconds, made.cpu_seconds, made.peak_bytes, size, instructions)


def ops_of(job: Path) -> int:
    """F, I and W (or B) of one plan."""
    spec = load_job(str(job)).spec
    return problem_of(GRAPH_PASSES.run(Target(spec, ()))).ops


def section(names: Sequence[str] = NAMES, each: bool = False) -> Section:
    """One row for each job; with `each`, every plan is printed as well."""
    return Section(
        title=TITLE,
        command=" ".join(("python -m bench.plans", *(names if tuple(names) != NAMES else ()))),
        words=(
            "All plans of a job, compiled from the shell with `recyclec compile` and its defaults. Seconds "
            "are of the whole command; memory is what all its processes hold together at the peak. A gap is "
            "how far a period is above its proven lower bound."
        ),
        columns=(
            "job", "plans", "ops per plan", "seconds", "CPU seconds", "peak MiB", "bundle KiB",
            "bytes per op", "gap <= 1 %", "mean gap", "worst gap", "optimal", "cut short",
        ),
        rows=tuple(_row(name, each) for name in names),
    )  # fmt: skip


def _row(name: str, each: bool) -> tuple[str, ...]:
    made, ops = compiled(job_path(name)), ops_of(job_path(name))
    if each:
        print(_plans(name, made).text())
    gaps = [plan["gap"] for plan in made.plans]
    count = len(gaps)
    return (
        name,
        str(count),
        f"{ops:,}",
        f"{made.seconds:.1f}",
        f"{made.cpu_seconds:.1f}",
        f"{made.peak_bytes / MIB:,.0f}",
        f"{made.bundle_bytes / 1024:,.0f}",
        f"{made.bundle_bytes / (ops * count):.2f}",
        percent(sum(gap <= 0.01 for gap in gaps) / count),
        percent(sum(gaps) / count),
        percent(max(gaps)),
        str(sum(plan["status"] == "optimal" for plan in made.plans)),
        str(sum(plan["cut_short"] for plan in made.plans)),
    )


def _plans(name: str, made: Compiled) -> Section:
    rows = (
        (
            str(plan["failures"]),
            per_stage_text(tuple(plan["failed_per_stage"])),
            f"{plan['period']:,}",
            f"{plan['lower_bound']:,}",
            f"{100 * plan['gap']:.2f} %",
            plan["status"],
            f"{plan['seconds']:.2f}",
        )
        for plan in made.plans
    )
    columns = ("failures", "failed per stage", "period", "bound", "gap", "status", "seconds")
    return Section(name, f"python -m bench.plans {name} --each", "", columns, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), help="jobs in bench/jobs (default: all)")
    parser.add_argument("--each", action="store_true", help="print every plan as well")
    arguments = parser.parse_args()
    print(section(arguments.names, arguments.each).text())


if __name__ == "__main__":
    main()
