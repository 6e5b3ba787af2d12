"""Options: what a job changes by itself while it runs."""

import math
from argparse import Namespace

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.coordinator.adaptation import AdaptationOptions

_OFF = "off"


def add_adaptation_arguments(parser: Arguments) -> None:
    """When to move workers or layers, when to replan, whether to plan ahead."""
    usual = AdaptationOptions()
    parser.add_argument(
        "--mtbf",
        type=float,
        default=usual.mtbf,
        metavar="SECONDS",
        help="mean time between failures of the whole job; workers move to another stage only if that pays "
        f"within it (default: {usual.mtbf:.0f})",
    )
    parser.add_argument(
        "--replan",
        default=f"{100 * (usual.replan or 0):.0f}",
        metavar="PERCENT|off",
        help="replan with measured op times if that shortens a step by this much (default: 5)",
    )
    parser.add_argument(
        "--replan-every",
        type=int,
        default=usual.replan_every,
        metavar="STEPS",
        help=f"minimum number of steps between two such plans (default: {usual.replan_every})",
    )
    parser.add_argument(
        "--plan-ahead",
        choices=("on", _OFF),
        default="on",
        help="plan for the next failure on every stage in the background (default: on)",
    )
    parser.add_argument(
        "--recut",
        choices=("auto", "always", _OFF),
        default=usual.recut,
        help="cut a job in layers anew after failures and re-joins: when it pays within the mean time "
        "between failures, whenever a step gets shorter, or never (default: auto)",
    )


def adaptation_options(arguments: Namespace) -> AdaptationOptions:
    """UsageError when something cannot be meant."""
    if not arguments.mtbf > 0 or math.isinf(arguments.mtbf):
        raise UsageError(f"--mtbf must be a number of seconds above 0, got {arguments.mtbf:g}")
    if arguments.replan_every < 1:
        raise UsageError(f"--replan-every must be at least 1, got {arguments.replan_every}")
    share, is_ahead = _share(arguments.replan), arguments.plan_ahead == "on"
    return AdaptationOptions(arguments.mtbf, share, arguments.replan_every, is_ahead, arguments.recut)


def _share(word: str) -> float | None:
    if word == _OFF:
        return None
    try:
        percent = float(word)
    except ValueError:
        percent = math.nan
    if not 0 < percent < 100:
        raise UsageError(f"--replan must be a percentage between 0 and 100, or {_OFF}, got {word!r}")
    return percent / 100
