"""`recyclec compile`: plans for every number of failures, into one bundle, and a table of what they cost."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.cli.observers import observers_for
from recycle_compiler.cli.output import DONE, STANDARD, USAGE, Output, UserError
from recycle_compiler.cli.planning import load_for, planning, with_techniques
from recycle_compiler.cli.progress import PlanProgress, can_rewrite
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import in_unit
from recycle_compiler.planner.compile import PlanSummary, compile_job
from recycle_compiler.viz.table import summary_table


def run(arguments: Namespace, output: Output) -> int:
    if arguments.out is None and not arguments.json:
        raise UserError(
            "say where the bundle goes with `-o PLAN`, or ask for the table alone with `--json`", USAGE
        )
    if arguments.out == STANDARD:
        raise UserError("a bundle is no text for stdout; name a file with `-o PLAN`", USAGE)
    loaded = load_for(arguments.job, arguments.out)
    job = with_techniques(loaded.spec, arguments.techniques)
    summaries: list[PlanSummary] = []
    total = (job.failures if arguments.failures is None else arguments.failures) + 1
    # What is printed after a pass would end up in the middle of the line.
    shown = can_rewrite(sys.stderr) and not output.quiet and not arguments.print_after_change
    with planning(job), PlanProgress(f"planning {job.name}", total, shown) as progress:

        def on_plan(summary: PlanSummary, done: int, total: int) -> None:
            summaries.append(summary)
            progress.update(summary.gap)

        programs = compile_job(
            job,
            failures=arguments.failures,
            processes=arguments.jobs,
            on_plan=on_plan,
            observers=observers_for(arguments.dump_dir, arguments.print_after_change, output),
        )
    summaries.sort(key=lambda summary: summary.failures)
    if arguments.out is not None:
        write_bundle(Path(arguments.out), source=loaded.source, programs=programs)
        output.written.append(arguments.out)
    if not output.quiet:
        output.words(summary_table(job, summaries, color=output.colored(sys.stderr)))
    if arguments.json:
        output.data(_json_table(job, summaries))
    return DONE


def _json_table(job: JobSpec, summaries: list[PlanSummary]) -> str:
    """One object, one plan per line."""
    plans = ",\n  ".join(json.dumps(_plan(job, summary)) for summary in summaries)
    return f'{{"job": {json.dumps(job.name)}, "unit": "{job.unit}", "plans": [\n  {plans}\n]}}\n'


def _plan(job: JobSpec, summary: PlanSummary) -> dict[str, Any]:
    return {
        "failures": summary.failures,
        "failed_per_stage": list(summary.failed_per_stage),
        "period": in_unit(job, summary.period),
        "makespan": in_unit(job, summary.makespan),
        "lower_bound": in_unit(job, summary.lower_bound),
        "gap": round(summary.gap, 6),
        "status": summary.status,
        "seconds": round(summary.seconds, 3),
        "against_1f1b": round(summary.against_1f1b, 6),
        "cut_short": summary.cut_short,
    }
