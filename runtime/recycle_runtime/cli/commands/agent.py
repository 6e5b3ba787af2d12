"""`recycle-run agent`: starts and monitors the worker processes of one node."""

import argparse
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recycle_runtime.cli.options.access import access, add_tls_argument, add_token_argument
from recycle_runtime.cli.options.addresses import add_patience_argument, address_or_file
from recycle_runtime.cli.options.checkpoints import add_changes_argument
from recycle_runtime.cli.options.limits import (
    add_debug_argument,
    add_heartbeat_argument,
    add_limit_arguments,
    time_limits,
)
from recycle_runtime.cli.options.parent import add_parent_argument, heed_parent
from recycle_runtime.cli.options.resources import add_ports_argument, check_ports
from recycle_runtime.cli.options.script import add_script_arguments, check_script
from recycle_runtime.cli.options.training import (
    add_device_arguments,
    add_gpu_arguments,
    add_plan_argument,
    check_device,
    workers_named,
)
from recycle_runtime.cli.output import DONE, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.devices import OWN_DEVICE, DeviceTakenError, WorkerDevices, lock_devices
from recycle_runtime.protocol.address import port_range

if TYPE_CHECKING:
    from recycle_runtime.execution.hooks import Hooks
    from recycle_runtime.protocol.messages.members import InjectedFault


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    add_device_arguments(parser)
    add_gpu_arguments(parser)
    parser.add_argument(
        "--coordinator",
        required=True,
        metavar="HOST:PORT|FILE",
        help="where the coordinator listens, or the path, with a slash in it, of a file that says so and is "
        "read again whenever the connection breaks: `address` in the coordinator's --state",
    )
    # Where a coordinator that takes over leaves its address, if that is not where the first one is.
    parser.add_argument("--address-file", help=argparse.SUPPRESS)
    add_patience_argument(parser)
    parser.add_argument(
        "--workers-per-node",
        required=True,
        type=int,
        metavar="N",
        help="how many worker processes this node has room for",
    )
    parser.add_argument("--state", required=True, metavar="DIR", help="a folder of this node for the agent")
    add_token_argument(parser)
    add_tls_argument(parser)
    parser.add_argument("--save", metavar="DIR", help="write the parameters of every worker at the end")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="the folder of the job's checkpoints as this node sees it; the coordinator needs the same one",
    )
    add_changes_argument(parser)
    parser.add_argument("--record", action="store_true", help="record when each op runs, for `local --trace`")
    add_ports_argument(parser)
    add_parent_argument(parser, "; workers end when the agent does, in place of waiting for the next one")
    add_heartbeat_argument(parser)
    add_debug_argument(parser)
    add_limit_arguments(parser)


def run(arguments: Namespace, output: Output) -> int:
    heed_parent(arguments)
    secret, patience = access(arguments), arguments.coordinator_timeout
    if not 0 < patience < float("inf"):
        raise UsageError(f"--coordinator-timeout must be a number of seconds above 0, got {patience:g}")
    check_ports(arguments.ports, port_range())
    (host, port), address_file = address_or_file("--coordinator", arguments.coordinator, patience)
    address_file = _absolute(address_file or arguments.address_file)
    limits = time_limits(arguments)
    debugged = None if arguments.debug is None else workers_named("--debug", [arguments.debug])[0]
    if arguments.workers_per_node < 1:
        raise UsageError(f"--workers-per-node must be at least 1, got {arguments.workers_per_node}")
    Path(arguments.bundle).open("rb").close()
    script = check_script(arguments)
    for folder in filter(None, (arguments.checkpoint, arguments.save)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    devices = _own_devices(arguments)
    from recycle_runtime.agent.agent import Agent, AgentOptions, JobOverError
    from recycle_runtime.agent.preload import preload
    from recycle_runtime.agent.process_table import PROCESSES, ProcessTable
    from recycle_runtime.agent.processes import KernelProcesses
    from recycle_runtime.agent.watch import Limits
    from recycle_runtime.coordinator.patience import group_timeout
    from recycle_runtime.files import FolderTakenError
    from recycle_runtime.protocol.codec import WireError
    from recycle_runtime.protocol.heartbeat_board import Board
    from recycle_runtime.protocol.identity import node_number
    from recycle_runtime.protocol.messages.members import InjectedFault, Member
    from recycle_runtime.protocol.near import near_name
    from recycle_runtime.protocol.node_memory import note_memory, open_memory
    from recycle_runtime.trainer.program_file import work_with_program
    from recycle_runtime.trainer.script import work_with_script
    from recycle_runtime.transport.nccl import set_environment
    from recycle_runtime.worker.debugging import keep_terminal, pass_breakpoints
    from recycle_runtime.worker.options import ProcessOptions, WorkerOptions

    state = Path(arguments.state).absolute()
    table = ProcessTable(state / PROCESSES, arguments.workers_per_node)
    pids = [row.pid for row in table.written() if KernelProcesses().is_ours(row.pid)]
    memory = open_memory(state, arguments.workers_per_node, pids)
    told = ProcessOptions(
        host=host,
        port=port,
        token=secret,
        worker=WorkerOptions(
            bundle=str(Path(arguments.bundle).absolute()),
            program=script[0] if script else arguments.program,
            plan=0,
            worker=(0, 0),
            tp_rank=0,
            steps=0,
            seed=arguments.seed,
            device=arguments.device,
            graphs=arguments.cuda_graphs,
            undo=arguments.undo,
            standstill=limits.heartbeat,
            trace=arguments.record,
            timeout=group_timeout(limits.instruction, limits.first_step),
        ),
        save=_absolute(arguments.save),
        checkpoint=_absolute(arguments.checkpoint),
        accepts_changes=arguments.accept_changes,
        node=node_number(state),
        address_file=address_file,
        patience=patience,
        memory=memory,
        relay=near_name(state),
    )

    def life(member: Member, line: int, faults: tuple[InjectedFault, ...], board: Board) -> int:
        device = arguments.device if devices is None else devices.use(line)
        if device == OWN_DEVICE:
            # NCCL may be used, and the user's code may start CUDA before this process does.
            set_environment()
        mine = replace(told, worker=replace(told.worker, device=device), line=line)
        if debugged is not None:
            mine = replace(mine, is_debugged=member.worker == debugged)
            (keep_terminal if mine.is_debugged else pass_breakpoints)()
        if script:
            return work_with_script(mine, script, member.worker, member.tp_rank, line, board, _hooks(faults))
        return work_with_program(mine, member.worker, member.tp_rank, line, board, _hooks(faults))

    watched = Limits(heartbeat=limits.heartbeat, instruction=limits.instruction, first_step=limits.first_step)
    options = AgentOptions(
        host,
        port,
        secret,
        arguments.workers_per_node,
        state,
        watched,
        address_file=address_file,
        patience=patience,
        memory=memory.number,
        ends_workers=arguments.end_with_parent,
        sees_exits=devices is not None and not devices.is_shared,
    )
    preload(checkpoints=arguments.checkpoint is not None)
    try:
        agent = Agent(options, life)
        note_memory(state, memory)
        return agent.run()
    except JobOverError as error:
        output.say(str(error))
        return DONE
    except (WireError, FolderTakenError) as error:
        raise UserError(str(error)) from None


def _own_devices(arguments: Namespace) -> WorkerDevices | None:
    """Devices of this node's workers, None on CPU; a device of one worker alone is locked.

    Locks last until this process and its workers have ended: no other job should begin on their memory.
    """
    devices = check_device(arguments.device, arguments.workers_per_node)
    if devices is not None and not devices.is_shared:
        try:
            lock_devices(devices.devices, Path(arguments.state))
        except DeviceTakenError as error:
            raise UserError(f"--device {arguments.device}: {error}") from None
    return devices


def _absolute(path: str | None) -> str | None:
    """Workers run the user's code, which may change the working directory."""
    return None if path is None else str(Path(path).absolute())


def _hooks(faults: "tuple[InjectedFault, ...]") -> "Hooks | None":
    """What injects these faults into a worker process; without any, nothing is loaded for it."""
    if not faults:
        return None
    from recycle_runtime.testing.faults import InjectedFaults

    return InjectedFaults(faults)
