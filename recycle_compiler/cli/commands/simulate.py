"""`recyclec simulate`: the throughput of a job over a trace of failures, under several policies."""

import argparse
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.bundles import read_bundle, read_bundle_job
from recycle_compiler.cli.options.files import add_output_argument
from recycle_compiler.cli.options.planning import load_for, planning, start_of
from recycle_compiler.cli.progress import cut_progress, is_shown, plan_progress, simulation_progress
from recycle_compiler.cli.values import count, one_of, positive
from recycle_compiler.fleet.comparison import Comparison, batch_of, compare
from recycle_compiler.fleet.machines import LAYOUTS, Fleet, Layout, LayoutError, lay_out
from recycle_compiler.fleet.our_plans import plans_of, recuts_of, with_jitter
from recycle_compiler.fleet.page import page
from recycle_compiler.fleet.policy import NAMES as POLICIES
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
from recycle_compiler.fleet.traces.trace import Grid, Trace, seconds_of
from recycle_compiler.frontend.gpt_model import MOST_LAYERS
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import plural
from recycle_compiler.planner.choice import plan_cuts
from recycle_compiler.planner.compile import PlanSummary, compile_job
from recycle_compiler.planner.recut import can_recut
from recycle_compiler.scheduling.budget import Deadline
from recycle_runtime.cli.output import (
    DONE,
    STANDARD,
    Output,
    UsageError,
    UserError,
    check_target,
    refuse_overwriting,
)
from recycle_runtime.plan.bundle import MAGIC, Bundle

_HOUR = 3600.0
_CUT_ANEW = {"oobleck", "chameleon", "elaswave", "varuna"}
"""Policies that ask how many layers there are."""
_DEFAULT_SLOT = 1.0
_DEFAULT_HOURS = 12.0
"""Of a trace that is generated from a description."""
REPORTS = ("table", "json", "html")
COSTS = (
    "detection",
    "regroup",
    "undone",
    "copy-rate",
    "start-up",
    "planning",
    "expected-change",
    "checkpoint-every",
    "checkpoint-save",
    "checkpoint-load",
    "restart",
    "reconfiguration",
    "rendezvous",
    "communicator",
)
"""What changes cost, as `recyclec simulate --costs` names it."""
_MOST_SEED = 999_999_999
_NUMBERS = {"undone": (0.0, 1000.0, "iterations"), "copy-rate": (1.0, 1e15, "bytes/s")}
"""Costs that are no times: the least, the most, and the unit."""
_ABOVE_ZERO = ("checkpoint-every", "expected-change")
_LEAST_TIME, _MOST_TIME = 0.001, 366 * 86400.0


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
        help=f"any of {','.join(POLICIES)}, or all (default: all); ours is always included",
    )
    _add_trace_arguments(parser)
    _add_cost_arguments(parser)
    _add_planning_arguments(parser)
    parser.add_argument(
        "--format",
        type=one_of(REPORTS),
        default="table",
        metavar="|".join(REPORTS),
        help="output format (default: table)",
    )
    add_output_argument(parser)


def _add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="duration (default: that of the trace; 12 if it is generated)",
    )
    parser.add_argument(
        "--seed",
        type=_whole(0, _MOST_SEED),
        default=0,
        metavar="N",
        help="seed of everything random (default: 0)",
    )
    parser.add_argument(
        "--gpus-per-node",
        type=positive,
        metavar="N",
        help="GPUs of a machine that fails as a whole (default: those of one worker)",
    )
    parser.add_argument(
        "--layout",
        type=one_of(LAYOUTS),
        default=LAYOUTS[0],
        metavar="|".join(LAYOUTS),
        help="who shares a machine: neighbours of a pipeline (default), or peers of a stage",
    )


def _add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="samples per iteration (default: as the job says)"
    )
    parser.add_argument(
        "--layers",
        type=_whole(1, MOST_LAYERS),
        metavar="N",
        help="layers of the model, for policies that partition it again",
    )
    parser.add_argument(
        "--slot",
        type=_duration,
        metavar="TIME",
        help="length of a slot, for jobs with `unit = slot`, such as 10ms (default: 1s)",
    )
    parser.add_argument(
        "--costs",
        type=_costs,
        default=(),
        metavar="NAME=TIME,...",
        help=f"costs of changes: {', '.join(COSTS)}; undone is in iterations, copy-rate in bytes/s",
    )
    parser.add_argument(
        "--jitter",
        type=_percent,
        default=0.0,
        metavar="PERCENT",
        help="op times vary randomly by this much around the planned ones; our plans run in the event engine",
    )


def _add_planning_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--failures",
        type=count,
        metavar="N",
        help="compile a job for 0..N failures (default: the job's tolerance)",
    )
    parser.add_argument(
        "--exact-plans",
        type=count,
        metavar="N",
        help="plan for the first N failure patterns that the bundle lacks, estimate the rest",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        help="number of processes that compile a job (default: one per core)",
    )


def run(arguments: Namespace, output: Output) -> int:
    check_target(arguments.out, arguments.source)
    if arguments.out is not None:
        refuse_overwriting(arguments.out, arguments.trace, "the trace")
    job = None if _is_bundle(arguments.source) else load_for(arguments.source, arguments.out)
    bundle = read_bundle(arguments.source) if job is None else None
    if bundle is None:
        assert job is not None
        spec = start_of(job.spec, output)
    else:
        spec = read_bundle_job(bundle, arguments.source)
        if spec.groups:
            raise UserError(
                f"{arguments.source}: a job cannot begin with groups of pipelines with cuts of their own; "
                "simulate the bundle that `recyclec compile` writes"
            )
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
        if not os.path.isfile(path):
            return path.endswith(".plan")
        with open(path, "rb") as file:
            beginning = file.read(len(MAGIC))
    except (OSError, ValueError):
        return path.endswith(".plan")
    return beginning == MAGIC or path.endswith(".plan")


def _layout(job: JobSpec, arguments: Namespace) -> Layout:
    try:
        return lay_out(job.pipelines, job.stages, job.tensor, arguments.gpus_per_node, arguments.layout)
    except LayoutError as error:
        raise UsageError(f"--gpus-per-node does not fit {job.name}: {error}") from None


def _trace(job: JobSpec, layout: Layout, arguments: Namespace) -> Trace:
    words: str = arguments.trace
    if not words.strip():
        raise UsageError("--trace needs a file or words such as `every 30m repair 2h`")
    if is_words(words) and not os.path.exists(words):
        hours = _DEFAULT_HOURS if arguments.hours is None else arguments.hours
        machines = Machines(len(layout.places), layout.gpus_each)
        return generate(parse_words(words), machines, hours * _HOUR, arguments.seed)
    trace = read_trace(words, Grid(job.pipelines, job.stages), arguments.seed)
    return trace if arguments.hours is None else trace.lasting(arguments.hours * _HOUR)


def _compile(job: JobSpec, source: str, arguments: Namespace, output: Output) -> Bundle:
    failures = job.failures if arguments.failures is None else arguments.failures
    title, shown = f"planning {job.name}", is_shown(output)
    deadline = Deadline(job.solver.time_limit_ns)
    with planning(job), plan_progress(title, failures + 1, output, shown) as progress:

        def on_plan(summary: PlanSummary, done: int, total: int) -> None:
            progress(summary.gap)

        processes = arguments.jobs or os.cpu_count() or 1
        plans = compile_job(
            job, failures=failures, processes=processes, recut=can_recut(job), on_plan=on_plan
        )
    recuts: list[tuple[Streams, ...]] = []
    if can_recut(job):
        with cut_progress(f"re-cutting {job.name}", output, shown):
            recuts = plan_cuts(job, dict(enumerate(plans)), processes, deadline).plans
    return Bundle.parse(bundle_bytes(source=source, plans=plans, recuts=recuts))


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
        *others, last = sorted(_CUT_ANEW)
        policies = f"{', '.join(others)} and {last}"
        output.say(f"note: --layers has no effect: only {policies} partition the model again")
    if trace.note:
        output.say(f"note: {trace.name}: {trace.note}")
    if trace.by_worker and (arguments.gpus_per_node is not None or arguments.layout != LAYOUTS[0]):
        options = "--gpus-per-node and --layout"
        output.say(f"note: {options} have no effect: {trace.name} names workers, not machines")


def _say_what_is_missing(bundle: Bundle, fleet: Fleet, source: str, output: Output) -> None:
    """Beyond the bundle's plans each has to be made while training waits or goes on with a slower one."""
    planned = max(len(plan.failed) for plan in bundle.plans)
    down = max(len(fleet.start.down), max((len(change.down) for change in fleet.changes()), default=0))
    possible = bundle.stages * (bundle.pipelines - 1)
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


def _setting(job: JobSpec, bundle: Bundle, said: Said, arguments: Namespace) -> Setting:
    layers = said.layers
    if arguments.layers is not None:
        if arguments.layers < job.stages:
            raise UsageError(
                f"--layers must be from {job.stages}, one for each stage, to {MOST_LAYERS}, "
                f"got {arguments.layers}"
            )
        layers = spread_layers(arguments.layers, job.stages)
    costs = replace(ChangeCosts(), **{name.replace("-", "_"): value for name, value in arguments.costs})
    slot = _DEFAULT_SLOT if arguments.slot is None else arguments.slot
    known = Known(layers, slot, costs, arguments.exact_plans)
    setting = make_setting(job, plans_of(bundle), known, recuts_of(bundle))
    return with_jitter(setting, bundle, arguments.jitter, arguments.seed) if arguments.jitter else setting


def _compare(comparison: Comparison, names: tuple[str, ...], output: Output) -> Report:
    total = len(names) * sum(1 for _ in comparison.fleet.changes())
    title = f"simulating {comparison.setting.job.name}"
    with simulation_progress(title, total, output, is_shown(output)) as meter:
        return compare(comparison, names, meter.begin, meter.advance)


def _text(report: Report, arguments: Namespace, output: Output) -> str:
    if arguments.format == "json":
        return report_document(report)
    if arguments.format == "html":
        return page(report)
    return report_table(report, color=arguments.out is None and output.colored(sys.stdout))


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(word: str) -> int:
        if word.isascii() and word.isdigit() and len(word) <= 20 and least <= int(word) <= most:
            return int(word)
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {word}")

    return parse


def _policy_names(words: str) -> tuple[str, ...]:
    names = POLICIES if words == "all" else tuple(words.split(","))
    if odd := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(f"must be any of {','.join(POLICIES)} or all, got {odd[0]!r}")
    return tuple(name for name in POLICIES if name in names or name == "ours")


def _decimal(word: str, least: float, most: float) -> float | None:
    """A plain decimal number in range, without signs and exponents."""
    if not (word.isascii() and len(word) <= 20 and word.replace(".", "", 1).isdigit()):
        return None
    return float(word) if least <= float(word) <= most else None


def _hours(word: str) -> float:
    hours = _decimal(word, 0.001, 87_600)
    if hours is None:
        raise argparse.ArgumentTypeError(f"must be a number from 0.001 to 87600, got {word}")
    return hours


def _percent(word: str) -> float:
    percent = _decimal(word.removesuffix("%"), 0, 100)
    if percent is None:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 100, got {word}")
    return percent / 100


def _duration(word: str) -> float:
    seconds = seconds_of(word)
    if not seconds:
        raise argparse.ArgumentTypeError(f"must be a time like 10ms or 1.5s, above 0, got {word}")
    return seconds


def _costs(words: str) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for word in words.split(","):
        name, _, value = word.strip().partition("=")
        if name not in COSTS:
            raise argparse.ArgumentTypeError(f"must be any of {', '.join(COSTS)}, got {name!r}")
        if name in found:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
        found[name] = _cost(name, value)
    return tuple(found.items())


def _cost(name: str, value: str) -> float:
    if name in _NUMBERS:
        least, most, unit = _NUMBERS[name]
        number = _decimal(value, least, most)
        if number is None:
            message = f"{name} must be a number of {unit} from {least:.0f} to {most:.0f}, got {value!r}"
            raise argparse.ArgumentTypeError(message)
        return number
    seconds = seconds_of(value)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"{name} must be a time like 2s or 1m30s, got {value!r}")
    least = _LEAST_TIME if name in _ABOVE_ZERO else 0.0
    if not least <= seconds <= _MOST_TIME:
        first = "1ms" if least else "0"
        raise argparse.ArgumentTypeError(f"{name} must be from {first} to 366d, got {value!r}")
    return seconds
