"""Agents and the coordinator. No torch."""

from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.members import InjectedFault, Member


class RunningProcess(NamedTuple):
    """A worker process of an agent's node."""

    member: Member
    pid: Natural


ENDED_WELL = "ended with status 0"
"""The end of a worker process that has done all that it should."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A worker process is gone."""

    member: Member
    pid: Natural
    how: str
    fault_at: Natural
    """Time at which it injected a fault into itself, in ns of the machine's monotonic clock; or 0."""
    stuck_in: Natural | None = None
    """The step in which its own work did not come to an end, if that is why."""
    where: str = ""
    """Then: the lines of the program that it was in."""


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """A node has room for so many worker processes; these run there already."""

    name: str
    """Of the agent, so that it is known again when its connection is a new one."""
    processes: Natural
    running: tuple[RunningProcess, ...]
    term: Natural = 0
    """The newest of which it knows; a coordinator of an older one must not lead it."""
    memory: str = ""
    """Of the node: see `node_memory`."""
    relays: bool = False
    """Its workers look for a connection at the agent."""
    ended: tuple[ProcessEnded, ...] = ()
    """The last that have ended: what was said of them may not have been heard."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I live."""


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start this worker process."""

    member: Member
    faults: tuple[InjectedFault, ...]
    ranks: Natural = 0
    """Number of its worker's processes, if that is fewer than the job's tensor-parallel ranks; or 0."""


@dataclass(frozen=True, slots=True)
class KillProcess:
    """So that it cannot come back half alive."""

    member: Member
    pid: Natural = 0
    """Another process of this name, started in its place, lives on; 0: whichever has the name."""


@dataclass(frozen=True, slots=True)
class RenameProcess:
    """A process is another worker from now on."""

    member: Member
    to: Member


@dataclass(frozen=True, slots=True)
class UseRelay:
    """Let worker processes of your node speak through you, or no more."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The job ends in order, with a last checkpoint, within so many seconds: stay, whoever asks you to go."""

    seconds: float


@dataclass(frozen=True, slots=True)
class JobOver:
    """End, and all your worker processes."""


AgentReport = AgentJoin | Heartbeat | ProcessEnded
AgentOrder = StartProcess | KillProcess | RenameProcess | UseRelay | JobEnding | JobOver
