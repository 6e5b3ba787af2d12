"""`recycle-run coordinator`: the process that knows who lives and what they do next."""

import argparse
import os
import sys
from pathlib import Path

from recycle_runtime.checkpoint.manifest import CheckpointError
from recycle_runtime.cli.adapting import adaptation, add_adaptation_arguments
from recycle_runtime.cli.checkpoints import add_checkpoint_arguments, check_checkpoint_arguments
from recycle_runtime.cli.errors import DONE, INPUT_ERROR, NO_PLAN, Refused
from recycle_runtime.cli.joining import add_address_arguments, address, token
from recycle_runtime.cli.parsers import Parsers
from recycle_runtime.cli.training import workers_named
from recycle_runtime.coordinator.service import JobOptions, Service
from recycle_runtime.testing.timetable import parse_faults, parse_returns, timetable

_SILENT = 3.0
_LEAST_SILENT = 1.0
"""Agents say something twice a second."""


def add_parser(commands: Parsers) -> None:
    does = "coordinate the workers of a job: who lives, which plan they run, where they go on after a failure"
    parser = commands.add_parser("coordinator", help=does, description=f"{does.capitalize()}.")
    parser.add_argument("bundle", metavar="PLAN")
    parser.add_argument("--steps", required=True, type=int, metavar="N", help="how many steps to train")
    parser.add_argument(
        "--failed", action="append", default=[], metavar="P:S,P:S", help="workers that are not there"
    )
    add_address_arguments(parser, "--listen", "where to listen (a port of 0 takes any free one)")
    parser.add_argument(
        "--state", required=True, metavar="DIR", help="a folder for what must outlive this process"
    )
    parser.add_argument(
        "--heartbeat-timeout",
        type=float,
        default=_SILENT,
        metavar="SECONDS",
        help="a node that is not heard of for so long is lost, if the job can go on without it "
        f"(default: {_SILENT:g})",
    )
    add_checkpoint_arguments(parser)
    add_adaptation_arguments(parser)
    for option in ("--fault", "--rejoin"):
        # For runs that are to be disturbed on purpose, which `local` starts.
        parser.add_argument(option, action="append", default=[], help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    host, port = address("--listen", arguments.listen, least=0)
    try:
        planned = timetable(parse_faults(arguments.fault), parse_returns(arguments.rejoin))
    except ValueError as error:
        raise Refused(str(error)) from None
    if not arguments.heartbeat_timeout >= _LEAST_SILENT:
        raise Refused(
            f"--heartbeat-timeout must be at least {_LEAST_SILENT:g} s, got {arguments.heartbeat_timeout:g}"
        )
    every = check_checkpoint_arguments(arguments)
    state = Path(arguments.state)
    options = JobOptions(
        bundle=arguments.bundle,
        steps=arguments.steps,
        failed=workers_named("--failed", arguments.failed) if arguments.failed else (),
        host=host,
        port=port,
        token=token(),
        state=state,
        timetable=planned,
        checkpoint=arguments.checkpoint,
        every=every,
        resume=arguments.resume,
        adaptation=adaptation(arguments),
        silent=arguments.heartbeat_timeout,
    )
    try:
        service = Service(options)
    except CheckpointError as error:
        raise Refused(str(error), INPUT_ERROR) from None
    _announce(state, f"{host}:{service.port}")
    error = service.run()
    if error is None:
        return DONE
    if not service.was_observed:
        if (newest := service.coordinator.saving.newest) is not None:
            error += f"; {newest.path} has the first {newest.step} steps: go on from it with --resume"
        print(f"recycle-run: error: {error}", file=sys.stderr)
    return NO_PLAN if service.has_no_plan else INPUT_ERROR


def _announce(folder: Path, text: str) -> None:
    """For whoever started this process: the address, once somebody listens there."""
    aside = folder / f"address.{os.getpid()}"
    aside.write_text(text, encoding="utf-8")
    aside.replace(folder / "address")
