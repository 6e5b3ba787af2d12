"""Options: faults to inject, and when workers come back."""

from argparse import Namespace

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.testing.chaos import chaos
from recycle_runtime.testing.timetable import parse_faults, parse_returns

_OPTIONS = (
    ("--kill", "P:S@STEP", "kill this worker in the middle of that step (SIGKILL); may be repeated"),
    ("--stop", "P:S@STEP", "stop it (SIGSTOP), so that it hangs; may be repeated"),
    (
        "--rejoin",
        "P:S@STEP[xRANKS]",
        "start it again when that step is reached, perhaps with fewer tensor-parallel ranks; may be repeated",
    ),
)

FAULT_NAMES = ("kill", "stop", "rejoin", "fault", "chaos", "chaos_events")
"""Of all options here, in parsed arguments."""


def add_fault_arguments(parser: Arguments) -> None:
    """Single faults and returns, or random ones."""
    for option, metavar, does in _OPTIONS:
        parser.add_argument(option, action="append", default=[], metavar=metavar, help=does)
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND=P:S@STEP[.N]",
        help="inject a fault before instruction N: kill, stop, term, exception, exit, gil, hang, socket, "
        "slow, half-open; may be repeated",
    )
    parser.add_argument("--chaos", type=int, metavar="SEED", help="inject random faults and returns")
    parser.add_argument(
        "--chaos-events", type=int, default=20, metavar="N", help="how many of them (default: 20)"
    )


def injected_faults(
    arguments: Namespace, options: RunOptions, bundle: Bundle
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Faults and returns, as the coordinator takes them; UsageError when they cannot be meant."""
    faults = [*(f"kill={word}" for word in arguments.kill), *(f"stop={word}" for word in arguments.stop)]
    faults += arguments.fault
    returns = list(arguments.rejoin)
    try:
        named = [(fault.place, fault.step) for fault in parse_faults(faults)]
        planned_returns = parse_returns(returns)
        named += [(planned.place, planned.step) for planned in planned_returns]
    except ValueError as error:
        raise UsageError(str(error)) from None
    for (pipeline, stage), step in named:
        if pipeline >= bundle.pipelines or stage >= bundle.stages:
            raise UsageError(
                f"there is no worker {pipeline}:{stage}: pipelines go from 0 to {bundle.pipelines - 1}, "
                f"stages from 0 to {bundle.stages - 1}"
            )
        if options.steps is not None and step >= options.steps:
            raise UsageError(f"{pipeline}:{stage}@{step} never happens: the last step is {options.steps - 1}")
    for ranks in (planned.ranks for planned in planned_returns if planned.ranks):
        if ranks >= bundle.tensor or bundle.tensor % ranks:
            raise UsageError(
                f"a worker cannot come back with {ranks} ranks: it has {bundle.tensor}, and fewer ranks must "
                "divide these"
            )
    if arguments.chaos is not None:
        if options.steps is None:
            raise UsageError("--chaos with a script needs --steps N: where its events may fall")
        seed, events = arguments.chaos, arguments.chaos_events
        more = chaos(seed, events, options.steps, bundle.pipelines, bundle.stages, options.failed)
        faults += more.faults
        returns += more.returns
    return tuple(faults), tuple(returns)
