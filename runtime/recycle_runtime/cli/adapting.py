"""What a job changes of its own accord: the options, and what they mean. Standard library only."""

import argparse
import math

from recycle_runtime.cli.errors import Refused
from recycle_runtime.coordinator.adaptation import AdaptationOptions

_OFF = "off"


def add_adaptation_arguments(parser: argparse.ArgumentParser) -> None:
    usual = AdaptationOptions()
    parser.add_argument(
        "--mtbf",
        type=float,
        default=usual.mtbf,
        metavar="SECONDS",
        help="expected time between two changes of the job's workers; moves pay if it is long "
        f"(default: {usual.mtbf:.0f})",
    )
    parser.add_argument(
        "--replan",
        default=f"{100 * (usual.replan or 0):.0f}",
        metavar="PERCENT|off",
        help="take up a plan for today's op times if it saves that much of a step (default: 5)",
    )
    parser.add_argument(
        "--replan-every",
        type=int,
        default=usual.replan_every,
        metavar="STEPS",
        help=f"steps from one such plan to the next at least (default: {usual.replan_every})",
    )
    parser.add_argument(
        "--plan-ahead",
        choices=("on", _OFF),
        default="on",
        help="plan for the next loss on every stage before it happens, with time that is left over",
    )


def adaptation(arguments: argparse.Namespace) -> AdaptationOptions:
    """Refused when something cannot be meant."""
    if not arguments.mtbf > 0 or math.isinf(arguments.mtbf):
        raise Refused(f"--mtbf must be a number of seconds above 0, got {arguments.mtbf:g}")
    if arguments.replan_every < 1:
        raise Refused(f"--replan-every must be at least 1, got {arguments.replan_every}")
    share, is_ahead = _share(arguments.replan), arguments.plan_ahead == "on"
    return AdaptationOptions(arguments.mtbf, share, arguments.replan_every, is_ahead)


def _share(word: str) -> float | None:
    if word == _OFF:
        return None
    try:
        percent = float(word)
    except ValueError:
        percent = math.nan
    if not 0 < percent < 100:
        raise Refused(f"--replan must be a percentage between 0 and 100, or {_OFF}, got {word!r}")
    return percent / 100
