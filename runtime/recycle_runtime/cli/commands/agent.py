"""`recycle-run agent`: starts and watches the worker processes of one node."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from recycle_runtime.cli.errors import INPUT_ERROR, Refused
from recycle_runtime.cli.joining import add_address_arguments, address, token
from recycle_runtime.cli.parsers import Parsers
from recycle_runtime.cli.training import check_device


def add_parser(commands: Parsers) -> None:
    does = "start and watch the worker processes of this node, as the job's coordinator asks"
    parser = commands.add_parser("agent", help=does, description=f"{does.capitalize()}.")
    parser.add_argument("bundle", metavar="PLAN")
    parser.add_argument("--program", required=True, metavar="FILE", help="the Python file to train")
    add_address_arguments(parser, "--coordinator", "where the coordinator listens")
    does = "worker processes to make room for"
    parser.add_argument("--workers-per-node", required=True, type=int, metavar="N", help=does)
    parser.add_argument("--state", required=True, metavar="DIR", help="a folder of this node for the agent")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of parameters, data and dropout")
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")
    does = "where this node sees the job's checkpoints; the coordinator must be given the same folder"
    parser.add_argument("--checkpoint", metavar="DIR", help=does)
    parser.add_argument("--record", action="store_true", help="keep what ran when, for whoever observes")
    parser.add_argument(
        "--heartbeat-timeout",
        type=float,
        default=1.5,
        metavar="SECONDS",
        help="a worker without a beat for so long hangs",
    )
    parser.add_argument(
        "--instruction-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="so does one that is in one instruction for so long and waits for nobody",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    host, port = address("--coordinator", arguments.coordinator)
    secret = token()
    if arguments.workers_per_node < 1:
        raise Refused(f"--workers-per-node must be at least 1, got {arguments.workers_per_node}")
    for name in (arguments.bundle, arguments.program):
        Path(name).open("rb").close()
    if arguments.checkpoint is not None:
        Path(arguments.checkpoint).mkdir(parents=True, exist_ok=True)
    import torch

    from recycle_runtime.agent.agent import Agent, AgentOptions
    from recycle_runtime.agent.preload import preload
    from recycle_runtime.agent.watch import Limits
    from recycle_runtime.coordinator.decision import Member
    from recycle_runtime.protocol.framing import WireError
    from recycle_runtime.protocol.heartbeat_board import Board
    from recycle_runtime.protocol.identity import node_number
    from recycle_runtime.testing.faults import Fault
    from recycle_runtime.transport.choose import local_device
    from recycle_runtime.worker.lifecycle import work
    from recycle_runtime.worker.static import WorkerOptions
    from recycle_runtime.worker.worker import MemberOptions

    if arguments.device == "cpu":
        # Asking for a GPU here would leave every worker with a broken one.
        check_device(arguments.device)
    told = MemberOptions(
        host=host,
        port=port,
        token=secret,
        worker=WorkerOptions(
            bundle=arguments.bundle,
            program=arguments.program,
            plan=0,
            worker=(0, 0),
            part=0,
            steps=0,
            seed=arguments.seed,
            device=arguments.device,
            trace=arguments.record,
            timeout=600.0,
        ),
        save=arguments.save,
        checkpoint=arguments.checkpoint,
        node=node_number(Path(arguments.state)),
    )

    gpus = torch.cuda.device_count() if arguments.device == "cuda" else 1

    def life(member: Member, line: int, faults: list[Any], board: Board) -> int:
        harm = [Fault(str(kind), int(step), int(position)) for kind, step, position in faults]
        device = local_device(line, gpus) if arguments.device == "cuda" else arguments.device
        mine = replace(told, worker=replace(told.worker, device=device))
        return work(mine, member.place, member.part, line, harm, board)

    limits = Limits(silent=arguments.heartbeat_timeout, stuck=arguments.instruction_timeout)
    options = AgentOptions(host, port, secret, arguments.workers_per_node, Path(arguments.state), limits)
    preload(checkpoints=arguments.checkpoint is not None)
    try:
        return Agent(options, life).run()
    except WireError as error:
        raise Refused(str(error), INPUT_ERROR) from None
