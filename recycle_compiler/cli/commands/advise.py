"""`recyclec advise`: how many machines, spare ones, copies and checkpoints a job should have for a trace."""

import argparse
import sys
from argparse import Namespace

from recycle_compiler.cli.options.fleet import (
    add_fleet_arguments,
    bundle_of,
    comparison_of,
    drawn_fleet,
    fleet_of,
    open_source,
    say_variation,
    whole,
)
from recycle_compiler.cli.progress import is_shown, simulation_progress
from recycle_compiler.fleet.advice import Advice, Question, advise
from recycle_compiler.fleet.advice_report import advice_document, advice_page, advice_table
from recycle_runtime.cli.output import DONE, Output, UsageError

_MOST_MACHINES, _MOST_NUMBERS, _MOST_DRAWS = 1 << 16, 64, 100
_STATES = 5
"""Ways to keep the optimizer's state that are compared at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A trace is a file of fault records, from which machines are drawn, or a description: "
        "`poisson rates=llama3`, `poisson mtbf=1000h repair=4h`."
    )
    parser.add_argument("source", metavar="PLAN|JOB", help="a bundle, or a job that is compiled first")
    parser.add_argument(
        "--trace", required=True, metavar="FILE|DESCRIPTION", help="when machines fail and return"
    )
    parser.add_argument(
        "--nodes",
        type=_range,
        metavar="N..M",
        help="numbers of machines to compare (default: from 4 fewer than the job has to 4 more)",
    )
    parser.add_argument(
        "--throughput",
        type=_throughput,
        metavar="X",
        help="what is wanted at least, in samples/s or the unit shown",
    )
    parser.add_argument(
        "--draws",
        type=whole(1, _MOST_DRAWS),
        default=3,
        metavar="K",
        help="draws of machines from the trace to average over (default: 3)",
    )
    add_fleet_arguments(parser)


def run(arguments: Namespace, output: Output) -> int:
    source = open_source(arguments, output)
    fleet = fleet_of(source.job, 0, arguments)
    places = len(fleet.layout.places)
    least = -(-source.job.stages * places // source.job.present)
    machines = arguments.nodes or range(max(least, places - 4), places + 5)
    if machines[-1] < least:
        raise UsageError(f"--nodes must reach {least}, one worker for each stage, got {machines[-1]}")
    if machines[0] < least:
        output.say(f"note: from {least} machines on: one worker for each stage")
    draw = drawn_fleet(source.job, arguments)
    bundle = bundle_of(source, arguments, output)
    say_variation(source.job, arguments, output)
    comparison = comparison_of(source.job, bundle, fleet, arguments)
    question = Question(
        comparison.setting,
        draw,
        places,
        least,
        comparison.batch,
        range(max(least, machines[0]), machines[-1] + 1),
        arguments.draws,
        arguments.seed,
        arguments.throughput,
        arguments.price,
        comparison.warm_spares,
        bundle.job_source,
        arguments.source,
    )
    title = f"advising on {source.job.name}"
    with simulation_progress(title, len(question.machines) + 1 + _STATES, output, is_shown(output)) as meter:

        def on_run(name: str) -> None:
            meter.begin(name)
            meter.advance()

        advice = advise(question, on_run)
    output.deliver(_text(advice, arguments, output), arguments.out)
    return DONE


def _text(advice: Advice, arguments: Namespace, output: Output) -> str:
    if arguments.format == "json":
        return advice_document(advice)
    if arguments.format == "html":
        return advice_page(advice)
    return advice_table(advice, color=arguments.out is None and output.colored(sys.stdout))


def _range(words: str) -> range:
    first, dots, last = words.partition("..")
    last = last if dots else first
    if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
        raise argparse.ArgumentTypeError(f"must be like 28..36, got {words}")
    # Longer ones are beyond any limit, and slow to read.
    low, high = int(first[:20]), int(last[:20])
    if not 1 <= low <= high <= _MOST_MACHINES or high - low >= _MOST_NUMBERS:
        raise argparse.ArgumentTypeError(
            f"must go up from at least 1 to at most {_MOST_MACHINES}, over at most {_MOST_NUMBERS} numbers, "
            f"got {words}"
        )
    return range(low, high + 1)


def _throughput(word: str) -> float:
    if word.isascii() and len(word) <= 20 and word.replace(".", "", 1).isdigit() and float(word) > 0:
        return float(word)
    raise argparse.ArgumentTypeError(f"must be a plain number above 0, of up to 20 characters, got {word}")
