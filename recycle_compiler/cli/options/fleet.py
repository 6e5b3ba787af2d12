"""Options of commands that lead a job through a trace of failures: its plans, the fleet, costs, prices."""

import argparse
import os
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields, replace
from typing import NamedTuple

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.bundles import read_bundle, read_bundle_job
from recycle_compiler.cli.options.files import add_output_argument
from recycle_compiler.cli.options.planning import load_for, planning, start_of
from recycle_compiler.cli.progress import cut_progress, is_shown, plan_progress
from recycle_compiler.cli.values import count, one_of, positive
from recycle_compiler.fleet.comparison import Comparison, batch_of
from recycle_compiler.fleet.machines import LAYOUTS, Fleet, LayoutError, MachinePlaces, lay_out
from recycle_compiler.fleet.our_plans import plans_of, recuts_of, with_jitter
from recycle_compiler.fleet.setting import (
    ChangeCosts,
    FleetSetting,
    Known,
    SaidInText,
    make_setting,
    read_said,
    spread_layers,
)
from recycle_compiler.fleet.traces.generated import Machines, generate, is_words, parse_words
from recycle_compiler.fleet.traces.read import read_trace
from recycle_compiler.fleet.traces.trace import Draw, FleetTrace, JobGrid, seconds_of
from recycle_compiler.frontend.gpt_model import MOST_LAYERS
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import percent
from recycle_compiler.planner.choice import plan_cuts
from recycle_compiler.planner.compile import PlanSummary, compile_job
from recycle_compiler.planner.recut import can_recut
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.simulator.costs import jitter_of
from recycle_runtime.cli.output import (
    STANDARD,
    Output,
    UsageError,
    UserError,
    check_target,
    refuse_overwriting,
)
from recycle_runtime.plan.bundle import MAGIC, Bundle

_HOUR = 3600.0
_DEFAULT_SLOT = 1.0
_DEFAULT_HOURS = 12.0
"""Of a trace that is generated from a description."""
SPARE_KINDS = ("cold", "warm", "hot")
"""Spare machines: without processes, with processes that wait, with the state of every stage as well."""
MOST_SPARES = 1 << 16
_MOST_COPY_STEPS = 1_000_000
COSTS = tuple(field.name.replace("_", "-") for field in fields(ChangeCosts))
"""Costs of changes, as `recyclec simulate --costs` names it."""
_MOST_SEED = 999_999_999
_NUMBERS = {
    "undone": (0.0, 1000.0, "iterations"),
    "copy-rate": (1.0, 1e15, "bytes/s"),
    "memory-rate": (1.0, 1e15, "bytes/s"),
    "expert-copies": (1.0, 1024.0, "workers"),
    "one-gpu": (0.0, 1.0, "failures"),
}
"""Costs that are no times: the least, the most, and the unit."""
_ABOVE_ZERO = ("checkpoint-every", "expected-change")
_LEAST_TIME, _MOST_TIME = 0.001, 366 * 86400.0
_MOST_PRICE = 1e9


REPORTS = ("table", "json", "html")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="duration (default: that of the trace; 12 if it is generated)",
    )
    parser.add_argument(
        "--seed",
        type=whole(0, _MOST_SEED),
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


def add_spare_arguments(parser: argparse.ArgumentParser) -> None:
    """The number of spare machines is another command's own question."""
    parser.add_argument(
        "--spare-kind",
        type=one_of(SPARE_KINDS),
        default=SPARE_KINDS[0],
        metavar="|".join(SPARE_KINDS),
        help="spare machines start their processes when needed (cold, default), have them waiting (warm), or "
        "hold the state of every stage as well (hot)",
    )
    parser.add_argument(
        "--replace",
        type=_duration,
        metavar="TIME",
        help="a failed machine is replaced by a new one after this time, if not repaired before",
    )
    parser.add_argument(
        "--neighbour-copies",
        type=whole(0, _MOST_COPY_STEPS),
        default=0,
        metavar="K",
        help="ours copies the state of every stage into the memory of two nodes every K steps, as "
        "`recycle-run --neighbour-copies K` does (default: 0, never)",
    )
    parser.add_argument(
        "--watched",
        type=positive,
        metavar="N",
        help="machines of the cluster whose faults a file records; those it does not name never failed "
        "(default: 400, as InfiniteHBD's)",
    )
    parser.add_argument(
        "--faults",
        type=_kinds,
        default=(),
        metavar="KIND,...",
        help="only faults of these levels or classes of a file of fault records, such as 'GPU,NIC'",
    )
    parser.add_argument(
        "--price",
        type=_price,
        metavar="P/GPU-hour",
        help="price of a GPU-hour, such as 2.5/GPU-hour; everything is paid for, spares and machines that "
        "are down included",
    )


def add_cost_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="samples per iteration (default: as the job says)"
    )
    parser.add_argument(
        "--layers",
        type=whole(1, MOST_LAYERS),
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
        help=f"costs of changes: {', '.join(COSTS)}; undone is in iterations, copy-rate and memory-rate in "
        "bytes/s, expert-copies in workers, one-gpu a share",
    )
    parser.add_argument(
        "--jitter",
        type=_percent,
        metavar="PERCENT",
        help="op times vary randomly by this much around the planned ones; our plans run in the event engine "
        "(default: as the job says)",
    )


def add_planning_arguments(parser: argparse.ArgumentParser) -> None:
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


class JobSource(NamedTuple):
    """The job of a command: a bundle, or a job that is compiled when it is known that all else is right."""

    job: JobSpec
    bundle: Bundle | None
    text: str
    """Of the job; empty for a bundle, which has it."""


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every command that runs a fleet over a trace, and of its report."""
    add_spare_arguments(parser)
    add_trace_arguments(parser)
    add_cost_arguments(parser)
    add_planning_arguments(parser)
    parser.add_argument(
        "--format",
        type=one_of(REPORTS),
        default="table",
        metavar="|".join(REPORTS),
        help="output format (default: table)",
    )
    add_output_argument(parser)


def open_source(arguments: Namespace, output: Output) -> JobSource:
    """The job or bundle that was named."""
    check_target(arguments.out, arguments.source)
    if arguments.out is not None:
        refuse_overwriting(arguments.out, arguments.trace, "the trace")
    if not _is_bundle(arguments.source):
        loaded = load_for(arguments.source, arguments.out)
        return JobSource(start_of(loaded.spec, output), None, loaded.source)
    bundle = read_bundle(arguments.source)
    job = read_bundle_job(bundle, arguments.source)
    if job.groups:
        raise UserError(
            f"{arguments.source}: a job cannot begin with groups of pipelines with cuts of their own; "
            "simulate the bundle that `recyclec compile` writes"
        )
    return JobSource(job, bundle, "")


def bundle_of(source: JobSource, arguments: Namespace, output: Output) -> Bundle:
    """With the plans of the job, which are made where there are none yet."""
    return source.bundle or _compile(source.job, source.text, arguments, output)


def say_variation(job: JobSpec, arguments: Namespace, output: Output) -> None:
    """Say that periods are means, where op times vary."""
    jitter = jitter_of(job, arguments.seed, arguments.jitter)
    if not jitter.is_none:
        output.say(
            f"note: op times vary, by {percent(jitter.by_microbatch)} from micro-batch to micro-batch and "
            f"{percent(jitter.variation)} by chance: periods of our plans are means over drawn iterations, "
            "those of other policies are longer in proportion"
        )


def fleet_of(job: JobSpec, spares: int, arguments: Namespace) -> Fleet:
    """The trace that was named, on the machines of the job and so many spare ones."""
    layout = _layout(job, arguments)
    return Fleet(_trace(job, layout, spares, arguments), layout)


def drawn_fleet(job: JobSpec, arguments: Namespace) -> Callable[[int, int, int], Fleet]:
    """Source of fleets of any number of machines, of which so many may be in the job, by a seed.

    UsageError where the trace is of a fleet of its own.
    """
    layout = _layout(job, arguments)
    if not _trace(job, layout, 0, arguments).is_drawn:
        raise UsageError(
            f"machines cannot be drawn from {arguments.trace}: use a file of fault records or a description, "
            "or `recyclec simulate --spares N`"
        )

    def draw(machines: int, used: int, seed: int) -> Fleet:
        spares = machines - len(layout.places)
        return Fleet(_trace(job, layout, spares, Namespace(**vars(arguments) | {"seed": seed})), layout, used)

    return draw


def comparison_of(job: JobSpec, bundle: Bundle, fleet: Fleet, arguments: Namespace) -> Comparison:
    """Everything that policies are compared with."""
    said = read_said(bundle.job_source)
    setting = replace(
        _setting(job, bundle, said, arguments),
        failure_interval=fleet.mean_time_between_failures,
        spares_have_state=arguments.spare_kind == "hot",
        seed=arguments.seed,
        neighbour_copies=arguments.neighbour_copies,
    )
    samples = said.samples if arguments.samples is None else arguments.samples
    batch, is_cold = batch_of(setting, samples), arguments.spare_kind == "cold"
    return Comparison(setting, fleet, batch, not is_cold, arguments.price)


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


def _layout(job: JobSpec, arguments: Namespace) -> MachinePlaces:
    try:
        return lay_out(
            job.pipelines, job.stages, job.tensor, arguments.gpus_per_node, arguments.layout, job.vacant
        )
    except LayoutError as error:
        raise UsageError(f"--gpus-per-node does not fit {job.name}: {error}") from None


def _trace(job: JobSpec, layout: MachinePlaces, spares: int, arguments: Namespace) -> FleetTrace:
    words: str = arguments.trace
    if not words.strip():
        raise UsageError("--trace needs a file or words such as `every 30m repair 2h`")
    if is_words(words) and not os.path.exists(words):
        hours = _DEFAULT_HOURS if arguments.hours is None else arguments.hours
        machines = Machines(len(layout.places), layout.gpus_each)
        described = parse_words(words)
        machines = machines._replace(number=machines.number + spares)
        trace = generate(described, machines, hours * _HOUR, arguments.seed)
    else:
        draw = Draw(len(layout.places) + spares, arguments.watched, arguments.faults)
        trace = read_trace(words, JobGrid(job.pipelines, job.stages, draw), arguments.seed)
        if not trace.is_drawn:
            trace = trace.with_spares(spares)
        trace = trace if arguments.hours is None else trace.lasting(arguments.hours * _HOUR)
    return trace if arguments.replace is None else trace.replaced_after(arguments.replace)


def _compile(job: JobSpec, source: str, arguments: Namespace, output: Output) -> Bundle:
    failures = job.failures - job.vacant if arguments.failures is None else arguments.failures
    title, shown = f"planning {job.name}", is_shown(output)
    guard = Guard(job.solver.time_limit_ns)
    with planning(job), plan_progress(title, failures + 1, output, shown) as progress:

        def on_plan(summary: PlanSummary, done: int, total: int) -> None:
            progress(summary.gap)

        processes = arguments.jobs or os.cpu_count() or 1
        plans = compile_job(
            job, failures=failures, processes=processes, recut=can_recut(job), on_plan=on_plan, guard=guard
        )
    recuts: list[tuple[Streams, ...]] = []
    if can_recut(job):
        with cut_progress(f"re-cutting {job.name}", output, shown):
            recuts = plan_cuts(job, dict(enumerate(plans, job.vacant)), processes, guard).plans
    return Bundle.parse(bundle_bytes(source=source, plans=plans, recuts=recuts))


def _setting(job: JobSpec, bundle: Bundle, said: SaidInText, arguments: Namespace) -> FleetSetting:
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
    return with_jitter(setting, bundle, arguments.jitter, arguments.seed)


def whole(least: int, most: int) -> Callable[[str], int]:
    def parse(word: str) -> int:
        if word.isascii() and word.isdigit() and len(word) <= 20 and least <= int(word) <= most:
            return int(word)
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, got {word}")

    return parse


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


def _kinds(words: str) -> tuple[str, ...]:
    kinds = tuple(word.strip() for word in words.split(","))
    if not all(kinds):
        raise argparse.ArgumentTypeError(f"must be names such as GPU,NIC, got {words!r}")
    return kinds


def _price(word: str) -> float:
    found = re.fullmatch(r"\s*[$€£]?\s*([^/\s]+)\s*(?:/\s*GPU-hour)?\s*", word, re.IGNORECASE)
    price = _decimal(found[1], 0, _MOST_PRICE) if found else None
    if not price:
        raise argparse.ArgumentTypeError(
            f"must be like 2.5/GPU-hour, above 0 and at most {_MOST_PRICE:.0f}, got {word!r}"
        )
    return price


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
