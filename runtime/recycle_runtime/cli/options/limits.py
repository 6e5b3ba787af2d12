"""Options: how long workers may show no sign of life, and how long they may take."""

import math
from argparse import Namespace
from typing import NamedTuple

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments

HEARTBEAT, INSTRUCTION, FIRST_STEP, NODE, TAKEOVER = 1.5, 60.0, 1800.0, 3.0, 10.0
ENDLESS = 7 * 86400.0
"""While somebody looks around in a debugger."""
_SHORTEST_NODE = 1.0
"""Agents send a heartbeat twice a second."""
_SHORTEST_TAKEOVER = 2.0
"""What a file system and a loaded machine can keep to."""


class TimeLimits(NamedTuple):
    """In seconds."""

    heartbeat: float
    instruction: float
    first_step: float


def add_heartbeat_argument(parser: Arguments) -> None:
    """For commands that watch worker processes."""
    parser.add_argument(
        "--heartbeat-timeout",
        type=float,
        default=HEARTBEAT,
        metavar="SECONDS",
        help="kill a worker that has been stopped or blocked without a heartbeat for this long; one that is "
        f"busy is left alone, and pauses that were seen before are allowed for (default: {HEARTBEAT:g})",
    )


def add_limit_arguments(parser: Arguments) -> None:
    """What is the same for all commands of a job."""
    parser.add_argument(
        "--instruction-timeout",
        type=float,
        default=INSTRUCTION,
        metavar="SECONDS",
        help="kill a worker that is in one instruction for this long and waits for no other "
        f"(default: {INSTRUCTION:g})",
    )
    parser.add_argument(
        "--first-step-timeout",
        type=float,
        default=FIRST_STEP,
        metavar="SECONDS",
        help="the same while a worker builds its layers and makes its first step, in which code is "
        f"compiled (default: {FIRST_STEP:g})",
    )


def add_node_argument(parser: Arguments, option: str) -> None:
    """For commands that watch agents."""
    parser.add_argument(
        option,
        type=float,
        default=NODE,
        metavar="SECONDS",
        help="a node without a heartbeat for this long has failed, if the job can continue without it "
        f"(default: {NODE:g})",
    )


def add_restart_argument(parser: Arguments, default: str | None) -> None:
    """None: on, unless faults are injected."""
    said = default or "on; off when faults are injected, which --rejoin mends"
    parser.add_argument(
        "--restart-workers",
        choices=("on", "off"),
        default=default,
        help="start failed workers again wherever there is room, after 1 s, and later if they fail again "
        f"(default: {said})",
    )


def add_takeover_argument(parser: Arguments, also: str = "") -> None:
    """For coordinators of which one takes over from another."""
    parser.add_argument(
        "--takeover-timeout",
        type=float,
        default=TAKEOVER,
        metavar="SECONDS",
        help="another coordinator takes over from one that has left no sign of life in the shared --state "
        f"for this long{also} (default: {TAKEOVER:g})",
    )


def add_debug_argument(parser: Arguments) -> None:
    """Which worker has the terminal."""
    parser.add_argument(
        "--debug",
        metavar="P:S",
        help="let this worker have the terminal: breakpoints and errors there open pdb; no time limits",
    )


def time_limits(arguments: Namespace) -> TimeLimits:
    """UsageError when they cannot be meant."""
    if getattr(arguments, "debug", None) is not None:
        return TimeLimits(ENDLESS, ENDLESS, ENDLESS)
    heartbeat: float = getattr(arguments, "heartbeat_timeout", HEARTBEAT)
    limits = TimeLimits(heartbeat, arguments.instruction_timeout, arguments.first_step_timeout)
    for name, seconds in zip(TimeLimits._fields, limits, strict=True):
        if not seconds > 0 or math.isnan(seconds):
            option = f"--{name.replace('_', '-')}-timeout"
            raise UsageError(f"{option} must be a number of seconds above 0, got {seconds:g}")
    return limits


def takeover_timeout(arguments: Namespace) -> float:
    """UsageError when it is shorter than coordinators can keep to."""
    seconds = arguments.takeover_timeout
    if not _SHORTEST_TAKEOVER <= seconds < float("inf"):
        raise UsageError(f"--takeover-timeout must be at least {_SHORTEST_TAKEOVER:g} s, got {seconds:g}")
    return seconds


def node_timeout(option: str, seconds: float) -> float:
    """UsageError when it is shorter than agents can keep to."""
    if not seconds >= _SHORTEST_NODE:
        raise UsageError(f"{option} must be at least {_SHORTEST_NODE:g} s, got {seconds:g}")
    return seconds
