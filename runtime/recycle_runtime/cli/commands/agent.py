"""`recycle-run agent`: starts and monitors the worker processes of one node."""

import argparse
import gc
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recycle_runtime.cli.options.access import access
from recycle_runtime.cli.options.addresses import address_or_file
from recycle_runtime.cli.options.parent import heed_parent
from recycle_runtime.cli.options.resources import check_ports
from recycle_runtime.cli.options.run import add_options, add_plan_argument, read_options
from recycle_runtime.cli.options.script import add_script_arguments, check_script
from recycle_runtime.cli.options.training import check_device, worker_named
from recycle_runtime.cli.output import DONE, Output, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.devices import OWN_DEVICE, DeviceTakenError, WorkerDevices, lock_devices
from recycle_runtime.options.run import AGENT, RunOptions, extended, shared_paths
from recycle_runtime.protocol.address import port_range

if TYPE_CHECKING:
    from recycle_runtime.execution.hooks import Hooks
    from recycle_runtime.protocol.messages.members import InjectedFault


def add_arguments(parser: Arguments) -> None:
    add_plan_argument(parser)
    add_script_arguments(parser)
    parser.add_argument(
        "--coordinator",
        required=True,
        metavar="HOST:PORT|FILE",
        help="where the coordinator listens, or the path, with a slash in it, of a file that says so and is "
        "read again whenever the connection breaks: `address` in the coordinator's --state",
    )
    # Where a coordinator that takes over leaves its address, if that is not where the first one is.
    parser.add_argument("--address-file", help=argparse.SUPPRESS)
    add_options(parser, AGENT)


def run(arguments: Namespace, output: Output) -> int:
    given = read_options(arguments).with_time()
    heed_parent(given)
    secret, patience = access(given), given.coordinator_timeout
    check_ports(given.ports, port_range())
    (host, port), named = address_or_file("--coordinator", arguments.coordinator, patience)
    address_file = named or arguments.address_file
    debugged = None if given.debug is None else worker_named("--debug", given.debug)
    Path(given.bundle).open("rb").close()
    script = check_script(arguments)
    for folder in filter(None, (given.checkpoint, given.save)):
        Path(folder).mkdir(parents=True, exist_ok=True)
    devices = _own_devices(given)
    # What is loaded now stays: to look for garbage among it takes a tenth of the time.
    gc.disable()
    from recycle_runtime.agent.agent import Agent, AgentOptions, JobOverError
    from recycle_runtime.agent.preload import preload
    from recycle_runtime.agent.process_table import PROCESSES, ProcessTable
    from recycle_runtime.agent.processes import KernelProcesses
    from recycle_runtime.agent.watch import WatchLimits
    from recycle_runtime.coordinator.patience import group_timeout
    from recycle_runtime.files import FolderTakenError
    from recycle_runtime.protocol.codec import WireError
    from recycle_runtime.protocol.heartbeat_board import Board
    from recycle_runtime.protocol.identity import node_number
    from recycle_runtime.protocol.messages.agents import StartProcess
    from recycle_runtime.protocol.near import near_name
    from recycle_runtime.protocol.node_memory import note_memory, open_memory
    from recycle_runtime.trainer.program_file import work_with_program
    from recycle_runtime.trainer.script import work_with_script
    from recycle_runtime.transport.nccl import set_environment
    from recycle_runtime.worker.debugging import keep_terminal, pass_breakpoints
    from recycle_runtime.worker.options import ProcessOptions

    state = Path(arguments.state).absolute()
    table = ProcessTable(state / PROCESSES, given.workers_per_node)
    pids = [row.pid for row in table.written() if KernelProcesses().is_ours(row.pid)]
    memory = open_memory(state, given.workers_per_node, pids)
    where: dict[str, Any] = {
        "host": host,
        "port": port,
        "token": secret,
        "state": state,
        "address_file": None if address_file is None else str(Path(address_file).absolute()),
    }
    told = extended(
        ProcessOptions,
        given,
        # Workers run the user's code, which may change the working directory.
        **shared_paths(given, AGENT) | where,
        program=script[0] if script else given.program,
        timeout=group_timeout(given.instruction_timeout, given.first_step_timeout),
        node=node_number(state),
        memory=memory,
        relay_name=near_name(state),
    )

    def life(order: StartProcess, line: int, board: Board) -> int:
        member, hooks = order.member, _hooks(order.faults)
        device = given.device if devices is None else devices.use(line)
        if device == OWN_DEVICE:
            # NCCL may be used, and the user's code may start CUDA before this process does.
            set_environment()
        mine = replace(told, device=device, line=line, ranks=order.ranks)
        if debugged is not None:
            mine = replace(mine, is_debugged=member.worker == debugged)
            (keep_terminal if mine.is_debugged else pass_breakpoints)()
        if script:
            return work_with_script(mine, script, member.worker, member.tp_rank, line, board, hooks)
        return work_with_program(mine, member.worker, member.tp_rank, line, board, hooks)

    limits = WatchLimits(
        heartbeat=given.heartbeat_timeout,
        instruction=given.instruction_timeout,
        first_step=given.first_step_timeout,
    )
    options = extended(
        AgentOptions,
        given,
        **where,
        limits=limits,
        memory=memory.number,
        sees_exits=devices is not None and not devices.is_shared,
    )
    preload(checkpoints=given.checkpoint is not None)
    gc.enable()
    try:
        agent = Agent(options, life)
        note_memory(state, memory)
        return agent.run()
    except JobOverError as error:
        output.say(str(error))
        return DONE
    except (WireError, FolderTakenError) as error:
        raise UserError(str(error)) from None


def _own_devices(options: RunOptions) -> WorkerDevices | None:
    """Devices of this node's workers, None on CPU; a device of one worker alone is locked.

    Locks last until this process and its workers have ended: no other job should begin on their memory.
    """
    devices = check_device(options.device, options.workers_per_node)
    if devices is not None and not devices.is_shared:
        try:
            lock_devices(devices.devices, Path(options.state or ""))
        except DeviceTakenError as error:
            raise UserError(f"--device {options.device}: {error}") from None
    return devices


def _hooks(faults: "tuple[InjectedFault, ...]") -> "Hooks | None":
    """Hooks that inject these faults into a worker process; without any, nothing is loaded for it."""
    if not faults:
        return None
    from recycle_runtime.testing.faults import InjectedFaults

    return InjectedFaults(faults)
