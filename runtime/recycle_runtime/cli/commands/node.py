"""`recycle-run node`: the same command on every node, which reads from its engine which node it is."""

import os
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from recycle_runtime.cli.options.access import (
    SERVER_OPTIONS,
    access,
    add_certificate_arguments,
    add_tls_argument,
    add_token_argument,
    check_certificate,
)
from recycle_runtime.cli.options.adaptation import add_adaptation_arguments
from recycle_runtime.cli.options.addresses import add_patience_argument
from recycle_runtime.cli.options.checkpoints import (
    add_changes_argument,
    add_checkpoint_arguments,
    add_copies_argument,
    checkpoint_every,
)
from recycle_runtime.cli.options.limits import (
    add_heartbeat_argument,
    add_limit_arguments,
    add_node_argument,
    add_restart_argument,
    add_takeover_argument,
    takeover_timeout,
)
from recycle_runtime.cli.options.parent import add_parent_argument, heed_parent
from recycle_runtime.cli.options.resources import add_ports_argument, add_relay_argument
from recycle_runtime.cli.options.script import add_script_arguments, check_script
from recycle_runtime.cli.options.training import (
    add_device_arguments,
    add_gpu_arguments,
    add_max_skipped_argument,
    add_peer_check_argument,
    add_plan_argument,
    add_step_arguments,
)
from recycle_runtime.cli.options.watching import add_watching_arguments
from recycle_runtime.cli.output import Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.cli.signals import StopRequests, stop_requests
from recycle_runtime.launcher.engines import EngineError, find_place
from recycle_runtime.launcher.kept_process import SupervisorError
from recycle_runtime.launcher.node import Node

_BOTH = (
    "--instruction-timeout",
    "--first-step-timeout",
    "--checkpoint",
    "--accept-changes",
    "--token-file",
    "--tls",
    "--end-with-parent",
)
_COORDINATOR = (
    "--steps",
    "--failed",
    "--restart-workers",
    "--relay",
    "--check-peers",
    "--max-skipped",
    "--checkpoint-every",
    "--resume",
    "--max-resumes",
    "--neighbour-copies",
    "--stop-timeout",
    "--mtbf",
    "--replan",
    "--replan-every",
    "--plan-ahead",
    "--recut",
    "--metrics",
    "--page",
    "--tensorboard",
    "--quiet",
    *SERVER_OPTIONS,
)
_AGENT = (
    "--program",
    "--device",
    "--seed",
    "--undo",
    "--cuda-graphs",
    "--coordinator-timeout",
    "--workers-per-node",
    "--heartbeat-timeout",
    "--save",
    "--ports",
)


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    add_step_arguments(parser, required=False)
    add_device_arguments(parser)
    add_gpu_arguments(parser)
    parser.add_argument(
        "--workers-per-node",
        required=True,
        type=int,
        metavar="N",
        help="how many worker processes each node has room for",
    )
    parser.add_argument(
        "--state",
        required=True,
        metavar="DIR",
        help="a folder for what must outlive a process; nodes may share it",
    )
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
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="how many nodes there will be (default: what the engine says)"
    )
    add_token_argument(parser)
    add_tls_argument(parser)
    add_certificate_arguments(parser)
    add_patience_argument(parser)
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")
    add_checkpoint_arguments(parser)
    add_copies_argument(parser)
    add_changes_argument(parser)
    add_ports_argument(parser)
    add_parent_argument(parser, "; workers end when their agent does, in place of waiting for the next one")
    add_heartbeat_argument(parser)
    add_node_argument(parser, "--node-timeout")
    add_takeover_argument(parser, "; 0: none does")
    add_restart_argument(parser, "on")
    add_relay_argument(parser)
    add_limit_arguments(parser)
    add_peer_check_argument(parser)
    add_max_skipped_argument(parser)
    add_adaptation_arguments(parser)
    add_watching_arguments(parser)


def run(arguments: Namespace, output: Output) -> int:
    heed_parent(arguments)
    access(arguments)
    check_certificate(arguments)
    try:
        place = find_place(os.environ, arguments.port, _parent())
    except EngineError as error:
        raise UsageError(str(error)) from None
    Path(arguments.bundle).open("rb").close()
    check_script(arguments)
    checkpoint_every(arguments)
    takes_over = _takes_over(arguments)
    requests = StopRequests()
    with stop_requests(requests, patient=True):
        nodes = place.nodes if arguments.nodes is None else arguments.nodes
        state = arguments.node_state or str(Path(arguments.state) / f"node-{place.node}")
        folder = Path(arguments.state) / "coordinator"
        words = coordinator_words(arguments, place.host, nodes)
        # Where nodes share it, an agent sees there who has taken over, and whether the job has ended.
        agent = agent_words(arguments, state, str(folder / "address"))
        node = Node(place, words, agent, folder if takes_over else None)
        try:
            return node.run(lambda: requests.number)
        except SupervisorError as error:
            raise UserError(str(error)) from None
        finally:
            node.end()


def coordinator_words(arguments: Namespace, host: str | None, nodes: int | None) -> list[str]:
    """The command line of the coordinator, but for where it listens; others reach it at this host."""
    words = ["coordinator", arguments.bundle, "--state", str(Path(arguments.state) / "coordinator")]
    words += [] if nodes is None else ["--nodes", str(nodes)]
    words += ["--heartbeat-timeout", str(arguments.node_timeout)]
    words += [] if host is None else ["--advertise", host]
    takeover = ("--takeover-timeout",) if _takes_over(arguments) else ()
    return [*words, *_words(arguments, (*_BOTH, *_COORDINATOR, *takeover))]


def _takes_over(arguments: Namespace) -> bool:
    return arguments.takeover_timeout != 0 and takeover_timeout(arguments) > 0


def agent_words(arguments: Namespace, state: str, address_file: str | None = None) -> list[str]:
    """The command line of an agent with this folder, but for where the coordinator is; it may leave its
    address in a file."""
    words = ["agent", arguments.bundle, "--state", state]
    words += [] if address_file is None else ["--address-file", address_file]
    return [*words, *_words(arguments, (*_BOTH, *_AGENT)), *arguments.script_words]


def _words(arguments: Namespace, options: Iterable[str]) -> list[str]:
    """These options as they were given, or as they are if they were not."""
    words: list[str] = []
    for option in options:
        value = getattr(arguments, option.removeprefix("--").replace("-", "_"))
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [f"{option}={each}" for each in value]  # pyright: ignore[reportUnknownVariableType]
        elif value is not None and value is not False:
            words.append(f"{option}={value}")
    return words


def _parent() -> list[str]:
    """The command line of the process that has started this one."""
    try:
        text = Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.split("\0")[:-1]
