"""Iterations per hour as workers fail, as table and picture: `python -m bench.throughput`."""

from collections.abc import Iterator, Sequence
from typing import Any

from bench.line_plot import Panel, plot
from bench.plans import compiled
from bench.report import ROOT, Section, job_path, percent
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.baselines import one_f_one_b_period, recycle_period

TITLE = "Throughput with failed workers"
NAMES = {"scale-2048": "1F1B's", "scale-2048-roomy": "1.5 times that"}
"""Jobs, and the memory they have in words."""
SHARES = (0, 1, 5, 10, 25)
"""Percent of the workers that have failed, rounded down to whole workers."""
MILLISECONDS_PER_HOUR = 3_600_000
PICTURE = ROOT / "docs" / "throughput.svg"
LINES = {"ours": 4, "ReCycle as published": 6, "fault-scaled": 5}
"""What is drawn, and its column."""


def section() -> Section:
    """One row for each job and share; draws the picture."""
    rows = tuple(row for name in NAMES for row in _rows(name))
    PICTURE.write_text(picture(rows), encoding="utf-8")
    return Section(
        title=TITLE,
        command="python -m bench.throughput",
        words=(
            "Iterations per hour on 2,048 GPUs, and as a multiple of fault-free 1F1B. Fault-scaled is "
            "fault-free 1F1B times the share of live workers. ReCycle as published re-routes in turn, "
            "splits backward only on stages with failures, staggers the optimizer and keeps 1F1B's order. "
            "![throughput by failed workers](throughput.svg)"
        ),
        columns=(
            "memory", "failed", "workers", "iterations/h", "ours", "fault-scaled", "ReCycle as published",
            "ours against that", "gap",
        ),
        rows=rows,
    )  # fmt: skip


def picture(rows: Sequence[Sequence[str]]) -> str:
    """A panel for each memory, from the rows of the table."""
    panels = [
        Panel(
            f"2,048 GPUs, memory: {memory}",
            {
                name: [_number(row[column]) for row in rows if row[0] == memory]
                for name, column in LINES.items()
            },
        )
        for memory in NAMES.values()
    ]
    label = "iterations per hour against fault-free 1F1B, by the share of workers that have failed"
    return plot(panels, [f"{share} %" for share in SHARES], label)


def _number(cell: str) -> float:
    return float(cell.removesuffix("x"))


def _rows(name: str) -> Iterator[tuple[str, ...]]:
    job = load_job(str(job_path(name))).spec
    plans = compiled(job_path(name)).plans
    for share in SHARES:
        plan = plans[job.workers * share // 100]
        yield (NAMES[name], f"{share} %", *_row(job, plan))


def _row(job: JobSpec, plan: dict[str, Any]) -> tuple[str, ...]:
    ours = plan["against_1f1b"]
    published = one_f_one_b_period(job) / recycle_period(job, tuple(plan["failed_per_stage"]))
    return (
        str(plan["failures"]),
        f"{MILLISECONDS_PER_HOUR / plan['period']:.1f}",
        f"{ours:.3f}x",
        f"{1 - plan['failures'] / job.workers:.3f}x",
        f"{published:.3f}x",
        f"{ours / published:.3f}x",
        percent(plan["gap"]),
    )


if __name__ == "__main__":
    print(section().text())
