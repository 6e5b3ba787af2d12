"""What may be typed after `recyclec simulate`. Imports nothing heavy."""

import argparse
from collections.abc import Callable

from recycle_compiler.cli.argument_values import count, one_of, positive
from recycle_compiler.fleet.machines import LAYOUTS
from recycle_compiler.fleet.policy import NAMES as POLICIES
from recycle_compiler.fleet.traces.trace import seconds_of
from recycle_compiler.frontend.model_block import MOST_LAYERS

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
)
"""What changes cost, as `recyclec simulate --costs` names it."""
_MOST_SEED = 999_999_999
_NUMBERS = {"undone": (0.0, 1000.0, "iterations"), "copy-rate": (1.0, 1e15, "bytes/s")}
"""Costs that are no times: the least, the most, and the unit."""
_ABOVE_ZERO = ("checkpoint-every", "expected-change")
_LEAST_TIME, _MOST_TIME = 0.001, 366 * 86400.0


def add_simulate_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, the policies, and everything that can be said about both."""
    parser.add_argument("source", metavar="PLAN|JOB", help="a bundle, or a job that is compiled first")
    parser.add_argument("--trace", required=True, metavar="FILE|WORDS", help="when machines fail and return")
    parser.add_argument(
        "--against",
        type=_policy_names,
        default=POLICIES,
        metavar="LIST",
        help=f"any of {','.join(POLICIES)}, or all (default: all); ours is always there",
    )
    parser.add_argument(
        "--hours",
        type=_hours,
        metavar="H",
        help="how long (default: the trace; 12 where it is made from words)",
    )
    parser.add_argument(
        "--seed", type=_whole(0, _MOST_SEED), default=0, metavar="N", help="of everything random (default: 0)"
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
    parser.add_argument(
        "--samples", type=positive, metavar="N", help="per iteration (default: as the job says)"
    )
    parser.add_argument(
        "--layers",
        type=_whole(1, MOST_LAYERS),
        metavar="N",
        help="of the model, for policies that cut it anew",
    )
    parser.add_argument(
        "--slot",
        type=_duration,
        metavar="TIME",
        help="of a job in slots, such as 10ms (default: 1s)",
    )
    parser.add_argument(
        "--costs",
        type=_costs,
        default=(),
        metavar="NAME=TIME,...",
        help=f"what changes cost: {', '.join(COSTS)}; undone is in iterations, copy-rate in bytes/s",
    )
    parser.add_argument(
        "--jitter",
        type=_percent,
        default=0.0,
        metavar="PERCENT",
        help="ops take random times, this much around the planned ones; our plans run in the event engine",
    )
    parser.add_argument(
        "--failures", type=count, metavar="N", help="compile a job for 0..N failures (default: the job's)"
    )
    parser.add_argument(
        "--exact-plans",
        type=count,
        metavar="N",
        help="plan for the first N failure patterns that the bundle lacks, estimate the others",
    )
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="processes, to compile a job (default: the cores)"
    )
    parser.add_argument("--format", type=one_of(REPORTS), default="table", metavar="|".join(REPORTS))
    parser.add_argument("-o", dest="out", metavar="FILE", help="write there instead of stdout")


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
