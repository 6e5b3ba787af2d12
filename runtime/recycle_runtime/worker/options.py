"""What worker processes are told when they start."""

from dataclasses import dataclass
from typing import Literal

from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.node_memory import NodeMemory


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Which worker this is, and what it trains."""

    bundle: str
    program: str
    plan: int
    """Which plan of the bundle."""
    worker: Worker
    tp_rank: int
    """Which of the worker's tensor-parallel processes."""
    steps: int
    seed: int
    device: str
    trace: bool
    timeout: float
    """Seconds to wait for other workers before giving up."""
    graphs: Literal["auto", "on", "off"] = "off"
    """Whether a GPU replays work as CUDA graphs."""
    undo: Literal["device", "host"] = "device"
    """Whose memory holds what undoes a step."""
    standstill: float = 1.5
    """Seconds for which all workers of a shared GPU may wait for each other."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """A worker process of a job with a coordinator."""

    host: str
    port: int
    token: Token
    worker: WorkerOptions
    save: str | None
    checkpoint: str | None = None
    """The folder of the job's checkpoints, as this node sees it."""
    accepts_changes: bool = False
    """Whether it resumes from a checkpoint that was made by a program with another source."""
    node: int = 0
    """The number of its node."""
    address_file: str | None = None
    """Where the coordinator's address stands, if it may change."""
    patience: float = 600.0
    """Seconds to look for a coordinator that is gone."""
    memory: NodeMemory | None = None
    """Of its node, for copies that outlive processes."""
    line: int = 0
    """Which of the processes of its node it is."""
    relay: str = ""
    """Where its agent listens if it passes on what is said to the coordinator: see `protocol.near`."""
    is_debugged: bool = False
    """Whether it has the terminal, so that a debugger can be opened where an error is raised."""
