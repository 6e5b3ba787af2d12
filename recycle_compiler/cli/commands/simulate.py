"""`recyclec simulate`: the throughput of a job over a trace of failures, under several policies."""

import os
import sys
from argparse import Namespace
from dataclasses import replace

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.bundles import read_bundle, read_bundle_job
from recycle_compiler.cli.output import (
    DONE,
    STANDARD,
    USAGE,
    Output,
    UserError,
    check_target,
    refuse_overwriting,
)
from recycle_compiler.cli.planning import load_for, planning
from recycle_compiler.cli.progress import PlanProgress, can_rewrite
from recycle_compiler.cli.simulate_progress import Meter
from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.machines import LAYOUTS, Fleet, Layout, LayoutError, lay_out
from recycle_compiler.fleet.our_plans import plans_of, with_jitter
from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.report import Report, report_document, report_table
from recycle_compiler.fleet.setting import (
    ChangeCosts,
    Known,
    Said,
    Setting,
    make_setting,
    read_said,
    spread_layers,
)
from recycle_compiler.fleet.traces.generated import Machines, generate, is_words, parse_words
from recycle_compiler.fleet.traces.read import read_trace
from recycle_compiler.fleet.traces.trace import Grid, Trace
from recycle_compiler.frontend.model_block import MOST_LAYERS
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import PlanSummary, compile_job
from recycle_runtime.plan.bundle import MAGIC, Bundle

_HOUR = 3600.0
_CUT_ANEW = {"oobleck", "varuna"}
"""Policies that ask how many layers there are."""
_DEFAULT_SLOT = 1.0
_DEFAULT_HOURS = 12.0
"""Of a trace that is made from words."""


def run(arguments: Namespace, output: Output) -> int:
    check_target(arguments.out, arguments.source)
    if arguments.out is not None:
        refuse_overwriting(arguments.out, arguments.trace, "the trace")
    job = None if _is_bundle(arguments.source) else load_for(arguments.source, arguments.out)
    bundle = read_bundle(arguments.source) if job is None else None
    spec = read_bundle_job(bundle, arguments.source) if bundle else job.spec if job else None
    assert spec is not None
    layout = _layout(spec, arguments)
    # Before minutes of planning, so that a mistake in the trace is told at once.
    fleet = Fleet(_trace(spec, layout, arguments), layout)
    if bundle is None and job is not None:
        bundle = _compile(spec, job.source, arguments, output)
    assert bundle is not None
    _say_what_has_no_effect(spec, fleet.trace, job is None, arguments, output)
    _say_what_is_missing(bundle, fleet, arguments.source, output)
    said = read_said(bundle.job_source)
    setting = _setting(spec, bundle, said, arguments)
    samples = said.samples if arguments.samples is None else arguments.samples
    comparison = Comparison(setting, fleet, batch_of(setting, samples))
    report = _compare(comparison, arguments.against, output)
    output.deliver(_text(report, arguments, output), arguments.out)
    return DONE


def _is_bundle(path: str) -> bool:
    """By how it begins; a file that cannot be read is judged by its name."""
    if path == STANDARD:
        return False
    try:
        with open(path, "rb") as file:
            beginning = file.read(len(MAGIC))
    except (OSError, ValueError):
        return path.endswith(".plan")
    return beginning == MAGIC or path.endswith(".plan")


def _layout(job: JobSpec, arguments: Namespace) -> Layout:
    try:
        return lay_out(job.pipelines, job.stages, job.tensor, arguments.gpus_per_node, arguments.layout)
    except LayoutError as error:
        raise UserError(f"--gpus-per-node does not fit {job.name}: {error}", USAGE) from None


def _trace(job: JobSpec, layout: Layout, arguments: Namespace) -> Trace:
    words: str = arguments.trace
    if not words.strip():
        raise UserError("--trace needs a file or words such as `every 30m repair 2h`", USAGE)
    if is_words(words) and not os.path.exists(words):
        hours = _DEFAULT_HOURS if arguments.hours is None else arguments.hours
        machines = Machines(len(layout.places), layout.gpus_each)
        return generate(parse_words(words), machines, hours * _HOUR, arguments.seed)
    trace = read_trace(words, Grid(job.pipelines, job.stages), arguments.seed)
    return trace if arguments.hours is None else trace.lasting(arguments.hours * _HOUR)


def _compile(job: JobSpec, source: str, arguments: Namespace, output: Output) -> Bundle:
    shown = can_rewrite(sys.stderr) and not output.quiet
    failures = job.failures if arguments.failures is None else arguments.failures
    with planning(job), PlanProgress(f"planning {job.name}", failures + 1, shown) as progress:

        def on_plan(summary: PlanSummary, done: int, total: int) -> None:
            progress.update(summary.gap)

        programs = compile_job(
            job, failures=failures, processes=arguments.jobs or os.cpu_count() or 1, on_plan=on_plan
        )
    return Bundle.parse(bundle_bytes(source=source, programs=programs))


def _say_what_has_no_effect(
    job: JobSpec, trace: Trace, planned: bool, arguments: Namespace, output: Output
) -> None:
    if planned:
        for option, value in (("--failures", arguments.failures), ("--jobs", arguments.jobs)):
            if value is not None:
                output.say(f"note: {option} has no effect: {arguments.source} is compiled already")
    if arguments.slot is not None and job.unit != "slot":
        output.say(f"note: --slot has no effect: {job.name} has its times in {job.unit}, not in slots")
    if arguments.layers is not None and not _CUT_ANEW & set(arguments.against):
        output.say(f"note: --layers has no effect: only {' and '.join(sorted(_CUT_ANEW))} cut the model anew")
    if trace.by_worker and (arguments.gpus_per_node is not None or arguments.layout != LAYOUTS[0]):
        options = "--gpus-per-node and --layout"
        output.say(f"note: {options} have no effect: {trace.name} names workers, not machines")


def _say_what_is_missing(bundle: Bundle, fleet: Fleet, source: str, output: Output) -> None:
    """Beyond the bundle's plans nobody moves to a better stage, which costs more than it must."""
    planned = max(len(plan.failed) for plan in bundle.plans)
    down = max(len(fleet.start.down), max((len(change.down) for change in fleet.changes()), default=0))
    possible = bundle.stages * (bundle.pipelines - 1)
    most = min(down, possible)
    if most <= planned:
        return
    others = "the others"
    if down > possible:
        others = f"those for up to {possible}, and with more down there are too few for every stage"
    output.say(
        f"note: up to {down} workers are down at once, and {source} has plans for {planned}; "
        f"`--failures {most}` when it is compiled would give us {others}"
    )


def _setting(job: JobSpec, bundle: Bundle, said: Said, arguments: Namespace) -> Setting:
    layers = said.layers
    if arguments.layers is not None:
        if arguments.layers < job.stages:
            raise UserError(
                f"--layers must be from {job.stages}, one for each stage, to {MOST_LAYERS}, "
                f"got {arguments.layers}",
                USAGE,
            )
        layers = spread_layers(arguments.layers, job.stages)
    costs = replace(ChangeCosts(), **{name.replace("-", "_"): value for name, value in arguments.costs})
    slot = _DEFAULT_SLOT if arguments.slot is None else arguments.slot
    known = Known(layers, slot, costs, arguments.exact_plans)
    setting = make_setting(job, plans_of(bundle), known)
    return with_jitter(setting, bundle, arguments.jitter, arguments.seed) if arguments.jitter else setting


def _compare(comparison: Comparison, names: tuple[str, ...], output: Output) -> Report:
    total = len(names) * sum(1 for _ in comparison.fleet.changes())
    shown = can_rewrite(sys.stderr) and not output.quiet
    with Meter(f"simulating {comparison.setting.job.name}", total, shown) as meter:
        return compare(comparison, names, meter.begin, meter.advance)


def _text(report: Report, arguments: Namespace, output: Output) -> str:
    if arguments.format == "json":
        return report_document(report)
    if arguments.format == "html":
        return page(report)
    return report_table(report, color=arguments.out is None and output.colored(sys.stdout))
