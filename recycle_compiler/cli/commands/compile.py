"""`recyclec compile`: plans for every number of failures, into one bundle, and a table of what they cost."""

import json
import logging
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.cli.observers import observers_for
from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.cli.options.planning import (
    add_techniques_argument,
    load_for,
    planning,
    start_of,
    with_chosen_techniques,
)
from recycle_compiler.cli.progress import cut_progress, is_shown, plan_progress
from recycle_compiler.cli.values import count, one_of, positive
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import in_unit, plural
from recycle_compiler.planner.choice import RecutChoice, plan_cuts
from recycle_compiler.planner.compile import PlanSummary, compile_job
from recycle_compiler.planner.groups import why_no_groups
from recycle_compiler.planner.recut import can_recut, why_own_cut
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.viz.table import summary_table
from recycle_runtime.cli.output import DONE, STANDARD, Output, UsageError
from recycle_runtime.cli.parser import Arguments

_LOGGER = logging.getLogger(__name__)


def add_arguments(parser: Arguments) -> None:
    add_job_argument(parser)
    parser.add_argument(
        "-o",
        "--output",
        dest="out",
        metavar="PLAN",
        help="the bundle to write; required unless --json is given",
    )
    parser.add_argument(
        "--failures", type=count, metavar="N", help="plan for 0..N failures (default: the job's tolerance)"
    )
    add_techniques_argument(parser)
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        default=os.cpu_count() or 1,
        help="number of processes (default: one per core)",
    )
    parser.add_argument(
        "--recut",
        type=one_of(("on", "off")),
        default="on",
        metavar="on|off",
        help="plan other cuts too, for a job in layers (default: on, unless the job says `recut = off`)",
    )
    parser.add_argument(
        "--groups",
        type=one_of(("on", "off")),
        metavar="on|off",
        help="plan two groups of pipelines with cuts of their own too, where they are faster (default: on up "
        "to 192 workers, unless the job says `groups = off`)",
    )
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--dump-dir", metavar="DIR", help="write the IR after each pass to numbered files")
    parser.add_argument(
        "--print-after-change", action="store_true", help="print the IR after each pass that changed it"
    )


def run(arguments: Namespace, output: Output) -> int:
    if arguments.out is None and not arguments.json:
        raise UsageError("say where the bundle goes with `-o PLAN`, or ask for the table alone with `--json`")
    if arguments.out == STANDARD:
        raise UsageError("a bundle is no text for stdout; name a file with `-o PLAN`")
    loaded = load_for(arguments.job, arguments.out)
    guard = Guard(loaded.spec.solver.time_limit_ns)
    job = start_of(with_chosen_techniques(loaded.spec, arguments.techniques), output, guard)
    summaries: list[PlanSummary] = []
    total = (job.failures - job.vacant if arguments.failures is None else arguments.failures) + 1
    # What is printed after a pass would end up in the middle of the bar.
    shown = is_shown(output) and not arguments.print_after_change
    with planning(job), plan_progress(f"planning {job.name}", total, output, shown) as progress:

        def on_plan(summary: PlanSummary, done: int, total: int) -> None:
            summaries.append(summary)
            progress(summary.gap)
            _log(job, summary)

        plans = compile_job(
            job,
            failures=arguments.failures,
            processes=arguments.jobs,
            recut=arguments.recut == "on" and can_recut(job),
            on_plan=on_plan,
            observers=observers_for(arguments.dump_dir, arguments.print_after_change, output),
            guard=guard,
        )
    summaries.sort(key=lambda summary: summary.failures)
    recuts: list[tuple[Streams, ...]] = []
    if arguments.recut == "on" and can_recut(job):
        with cut_progress(f"re-cutting {job.name}", output, shown):
            groups = _wants_groups(job, arguments.groups, output)
            found = plan_cuts(job, dict(enumerate(plans, job.vacant)), arguments.jobs, guard, groups=groups)
        plans, recuts = found.own(plans), found.plans
        summaries = [_over_cuts(job, summary, found) for summary in summaries]
    elif arguments.recut == "on" and job.layer_costs is not None:
        output.say(f"{job.name} keeps its own cut: {why_own_cut(job)}")
    if arguments.out is not None:
        write_bundle(Path(arguments.out), source=loaded.source, plans=plans, recuts=recuts)
        output.written.append(arguments.out)
    if not output.quiet:
        output.words(summary_table(job, summaries, color=output.colored(sys.stderr)))
        if job.varies:
            output.say(
                "note: op times of this job vary; these periods are of the times as written, and `recyclec "
                "explain` says how long an iteration takes on average"
            )
    if arguments.json:
        output.data(_json_table(job, summaries))
    return DONE


def _wants_groups(job: JobSpec, asked: str | None, output: Output) -> bool | None:
    """True if groups of pipelines are planned; None leaves that to the job."""
    if asked == "on" and (why := why_no_groups(job)):
        output.say(f"{job.name} cannot have groups of pipelines: {why}")
        return False
    return None if asked is None else asked == "on"


def _over_cuts(job: JobSpec, own: PlanSummary, found: RecutChoice) -> PlanSummary:
    """The row of the fastest plan of any cut, or of groups, for as many failures."""
    missing = job.vacant + own.failures
    bound, live = found.bounds[missing], job.workers - missing
    counts = tuple(job.pipelines - failed for failed in own.failed_per_stage)
    hurried = missing in found.cut_short
    row = replace(
        own,
        layout=Layout(job.cut, counts),
        bound_over_cuts=bound,
        own_period=own.period,
        gap=own.period / bound - 1,
        status="optimal" if own.period == bound else "bounded",
        cut_short=own.cut_short or hurried,
    )
    best = found.best(live, own.period)
    if best is None:
        return row
    claims = best.claims
    return replace(
        row,
        layout=best.layout,
        split=best.split,
        period=claims.period,
        makespan=claims.makespan,
        lower_bound=claims.lower_bound,
        gap=claims.period / bound - 1,
        status="optimal" if claims.period == bound else "bounded",
        against_1f1b=own.against_1f1b * own.period / claims.period,
        cut_short=claims.cut_short or hurried,
    )


def _log(job: JobSpec, summary: PlanSummary) -> None:
    _LOGGER.info(
        "job %s, plan for %s: period %s %s, gap %.4f, %s, %.3f s",
        job.name,
        plural(summary.failures, "failure"),
        in_unit(job, summary.period),
        job.unit,
        summary.gap,
        summary.status,
        summary.seconds,
    )


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
        **_cut(job, summary),
    }


def _cut(job: JobSpec, summary: PlanSummary) -> dict[str, Any]:
    """Of a job in layers, under which cut the plan is and what is known of all cuts."""
    if summary.layout is None:
        return {}
    return {
        "workers": job.present - summary.failures,
        "layout": str(summary.layout),
        "stages": summary.layout.stages,
        "cut": list(summary.layout.layers),
        "hosts": list(summary.layout.workers),
        "split": summary.split,
        "bound_over_cuts": in_unit(job, summary.bound_over_cuts),
        "own_period": in_unit(job, summary.own_period),
    }
