"""`recycle-run node`: the same command on every node, which reads from its engine which node it is."""

import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from recycle_runtime.cli.options.access import access, check_certificate
from recycle_runtime.cli.options.parent import heed_parent
from recycle_runtime.cli.options.run import add_options, add_plan_argument, read_options
from recycle_runtime.cli.options.script import add_script_arguments, check_script
from recycle_runtime.cli.output import Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.cli.signals import StopRequests, stop_requests
from recycle_runtime.launcher.engines import EngineError, find_place
from recycle_runtime.launcher.kept_process import SupervisorError
from recycle_runtime.launcher.node import Node
from recycle_runtime.options.run import AGENT, COORDINATOR, NODE, RunOptions, command_words


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    add_options(parser, NODE)
    parser.add_argument(
        "--node-state",
        metavar="DIR",
        help="a folder of this node alone for its agent, on a disk of its own (default: in --state)",
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="N",
        help="where the coordinator on the first node listens (default: MASTER_PORT, or one more under "
        "torchrun; on Slurm one that follows from the job's number; else 29500)",
    )


def run(arguments: Namespace, output: Output) -> int:
    options = read_options(arguments)
    heed_parent(options)
    access(options)
    check_certificate(options)
    try:
        place = find_place(os.environ, arguments.port, _parent())
    except EngineError as error:
        raise UsageError(str(error)) from None
    Path(options.bundle).open("rb").close()
    check_script(arguments)
    requests = StopRequests()
    with stop_requests(requests, patient=True):
        nodes = place.nodes if options.nodes is None else options.nodes
        state = arguments.node_state or str(Path(arguments.state) / f"node-{place.node}")
        folder = Path(arguments.state) / "coordinator"
        words = coordinator_words(options, place.host, nodes, quiet=output.quiet)
        # Where nodes share it, an agent sees there who has taken over, and whether the job has ended.
        agent = agent_words(options, state, str(folder / "address"))
        node = Node(place, words, agent, folder if options.takeover_timeout else None)
        try:
            return node.run(lambda: requests.number)
        except SupervisorError as error:
            raise UserError(str(error)) from None
        finally:
            node.end()


def coordinator_words(
    options: RunOptions, host: str | None, nodes: int | None, *, quiet: bool = False
) -> list[str]:
    """The command line of the coordinator, but for where it listens; others reach it at this host."""
    more = [] if host is None else ["--advertise", host]
    more += ["--quiet"] if quiet else []
    own = replace(options, state=Path(options.state or "") / "coordinator", nodes=nodes)
    return command_words(own, COORDINATOR, *more)


def agent_words(options: RunOptions, state: str, address_file: str | None = None) -> list[str]:
    """The command line of an agent with this folder, but for where the coordinator is; it may leave its
    address in a file."""
    more = [] if address_file is None else ["--address-file", address_file]
    return command_words(replace(options, state=state), AGENT, *more)


def _parent() -> list[str]:
    """The command line of the process that has started this one."""
    try:
        text = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.split("\0")[:-1]
