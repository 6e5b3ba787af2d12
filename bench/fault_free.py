"""Fault-free plans beside the schedules of the literature: `python -m bench.fault_free [names]`."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from bench.plans import NAMES
from bench.report import Section, job_path
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import time_text
from recycle_compiler.planner.baselines import Textbook, textbook_schedule
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort

TITLE = "Fault-free"
_SAME_STAGES = ("scale-2048-roomy", "even-8x4x16-1.5x", "even-8x4x16-2x")
"""Differ from another job in memory alone, which is set anew here."""


def section(names: Sequence[str] = ()) -> Section:
    """One row for each job; ours gets the memory that the schedule beside it takes."""
    return Section(
        title=TITLE,
        command=" ".join(("python -m bench.fault_free", *names)),
        words=(
            "Periods of healthy pipelines. GPipe and 1F1B have one barrier before the optimizer, as "
            "published; the others step stage by stage. Ours at 1x has the memory that ZB-H1 takes (what "
            "1F1B takes on its first stage, on every stage), at 2x that of ZB-H2; the bounds are proven for "
            "it."
        ),
        columns=(
            "job", "unit", "GPipe", "1F1B", "ZB-H1", "ours at 1x", "bound at 1x", "ZB-H2", "ours at 2x",
            "bound at 2x",
        ),
        rows=tuple(_row(name) for name in names or [name for name in NAMES if name not in _SAME_STAGES]),
    )  # fmt: skip


def _row(name: str) -> tuple[str, ...]:
    job = load_job(str(job_path(name))).spec
    schedules = {title: textbook_schedule(job, title) for title in ("GPipe", "1F1B", "ZB-H1", "ZB-H2")}
    once, twice = (_ours(job, schedules[title]) for title in ("ZB-H1", "ZB-H2"))
    times = (
        schedules["GPipe"].period,
        schedules["1F1B"].period,
        schedules["ZB-H1"].staggered_period,
        *once,
        schedules["ZB-H2"].staggered_period,
        *twice,
    )
    return (name, job.unit, *(time_text(job, ticks) for ticks in times))


def _ours(job: JobSpec, beside: Textbook) -> tuple[int, int]:
    """Period and bound in the same memory; no gap is good enough to stop at."""
    solver = replace(job.solver, gap_ppm=0)
    claims = plan_failed(replace(job, capacity=beside.memory, solver=solver), (), effort=Effort()).claims
    return claims.period, claims.lower_bound


if __name__ == "__main__":
    print(section(sys.argv[1:]).text())
