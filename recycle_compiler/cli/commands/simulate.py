"""`recyclec simulate`: the throughput of a job over a trace of failures, under several policies."""

import argparse
import sys
from argparse import Namespace

from recycle_compiler.cli.options.fleet import (
    MOST_SPARES,
    add_fleet_arguments,
    bundle_of,
    comparison_of,
    fleet_of,
    open_source,
    say_variation,
    whole,
)
from recycle_compiler.cli.progress import is_shown, simulation_progress
from recycle_compiler.fleet.comparison import Comparison, compare
from recycle_compiler.fleet.machines import LAYOUTS, Fleet
from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.policy import CUT_ANEW, OF_EXPERTS, OF_RANKS
from recycle_compiler.fleet.policy import NAMES as POLICIES
from recycle_compiler.fleet.report import FleetReport, report_document, report_table
from recycle_compiler.fleet.traces.trace import FleetTrace, duration_text
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.plan.bundle import Bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A trace is a file or a description that one is generated from: `every 30m`, "
        "`every 30m repair 2h`, `poisson mtbf=1000h repair=4h`, `none`."
    )
    parser.add_argument("source", metavar="PLAN|JOB", help="a bundle, or a job that is compiled first")
    parser.add_argument(
        "--trace", required=True, metavar="FILE|DESCRIPTION", help="when machines fail and return"
    )
    parser.add_argument(
        "--against",
        type=_policy_names,
        default=POLICIES,
        metavar="LIST",
        help=f"any of {','.join(POLICIES)}, or all (default: all for this job); ours is always included",
    )
    parser.add_argument(
        "--spares",
        type=whole(0, MOST_SPARES),
        default=0,
        metavar="N",
        help="machines more than the job needs, which are paid for too (default: 0)",
    )
    add_fleet_arguments(parser)


def run(arguments: Namespace, output: Output) -> int:
    source = open_source(arguments, output)
    # Before minutes of planning, so that a mistake in the trace is told at once.
    fleet = fleet_of(source.job, arguments.spares, arguments)
    bundle = bundle_of(source, arguments, output)
    _say_what_has_no_effect(source.job, fleet.trace, source.bundle is not None, arguments, output)
    _say_what_is_missing(bundle, fleet, arguments.source, output)
    say_variation(source.job, arguments, output)
    comparison = comparison_of(source.job, bundle, fleet, arguments)
    report = _compare(comparison, _for_job(arguments.against, source.job), output)
    output.deliver(_text(report, arguments, output), arguments.out)
    return DONE


def _say_what_has_no_effect(
    job: JobSpec, trace: FleetTrace, planned: bool, arguments: Namespace, output: Output
) -> None:
    if planned:
        for option, value in (("--failures", arguments.failures), ("--jobs", arguments.jobs)):
            if value is not None:
                output.say(f"note: {option} has no effect: {arguments.source} is compiled already")
    if arguments.slot is not None and job.unit != "slot":
        output.say(f"note: --slot has no effect: {job.name} has its times in {job.unit}, not in slots")
    if arguments.layers is not None and not CUT_ANEW & set(arguments.against):
        *others, last = sorted(CUT_ANEW)
        policies = f"{', '.join(others)} and {last}"
        output.say(f"note: --layers has no effect: only {policies} partition the model again")
    _say_what_the_trace_lacks(trace, arguments, output)


def _say_what_the_trace_lacks(trace: FleetTrace, arguments: Namespace, output: Output) -> None:
    if trace.note:
        output.say(f"note: {trace.name}: {trace.note}")
    for option, value in (("--watched", arguments.watched), ("--faults", arguments.faults)):
        if value and not trace.is_recorded:
            output.say(f"note: {option} has no effect: {trace.name} is no file of fault records")
    failures = [event.at for event in trace.events if not event.added]
    if failures and min(failures) >= trace.span:
        output.say(
            f"note: all failures of {trace.name} are at its end, {duration_text(trace.span)}: with a longer "
            "`--hours H` they count"
        )
    if arguments.spares and trace.spares:
        output.say(f"note: {trace.name} says nothing of spare machines: they never fail")
    if trace.by_worker and (arguments.gpus_per_node is not None or arguments.layout != LAYOUTS[0]):
        options = "--gpus-per-node and --layout"
        output.say(f"note: {options} have no effect: {trace.name} names workers, not machines")


def _say_what_is_missing(bundle: Bundle, fleet: Fleet, source: str, output: Output) -> None:
    """Beyond the bundle's plans each has to be made while training waits or goes on with a slower one."""
    vacant = len(bundle.vacant)
    planned = max(len(plan.failed) for plan in bundle.plans) - vacant
    down = max(len(fleet.start.down), max((len(change.down) for change in fleet.changes()), default=0))
    down -= vacant
    possible = bundle.stages * (bundle.pipelines - 1) - vacant
    most = min(down, possible)
    if most <= planned:
        return
    others = "the rest"
    if down > possible:
        others = f"those for up to {possible}, and with more down there are too few for every stage"
    workers = "1 worker is" if down == 1 else f"{down:,} workers are"
    output.say(
        f"note: up to {workers} down at once, and {source} has plans for {plural(planned, 'failure')}; "
        f"`--failures {most}` when it is compiled would add {others}"
    )


def _compare(comparison: Comparison, names: tuple[str, ...], output: Output) -> FleetReport:
    total = len(names) * sum(1 for _ in comparison.fleet.changes())
    title = f"simulating {comparison.setting.job.name}"
    with simulation_progress(title, total, output, is_shown(output)) as meter:
        return compare(comparison, names, meter.begin, meter.advance)


def _text(report: FleetReport, arguments: Namespace, output: Output) -> str:
    if arguments.format == "json":
        return report_document(report)
    if arguments.format == "html":
        return page(report)
    return report_table(report, color=arguments.out is None and output.colored(sys.stdout))


def _for_job(names: tuple[str, ...], job: JobSpec) -> tuple[str, ...]:
    """All of them leave out those for jobs with experts, or with ranks, where there are none; who is named
    stays."""
    if names != POLICIES:
        return names
    without = {*(() if job.slots else OF_EXPERTS), *(() if job.tensor > 1 else OF_RANKS)}
    return tuple(name for name in names if name not in without)


def _policy_names(words: str) -> tuple[str, ...]:
    names = POLICIES if words == "all" else tuple(words.split(","))
    if odd := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"must be any of {','.join(POLICIES)} or all, got {odd[0]!r}")
    return tuple(name for name in POLICIES if name in names or name == "ours")
