"""Options of worker processes."""

from dataclasses import dataclass

from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.node_memory import NodeMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions(RunOptions):
    """A worker with one plan: the options of the run, and which worker it is."""

    steps: int = 0
    plan: int
    """Number of the plan in the bundle."""
    worker: Worker
    tp_rank: int
    """Rank of the process among the worker's tensor-parallel processes."""
    timeout: float
    """Seconds to wait for other workers before giving up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions(RunOptions):
    """A worker process of a job with a coordinator: the options of the run, and where it finds itself."""

    host: str
    port: int
    token: Token
    timeout: float
    """Seconds to wait for other workers before giving up."""
    node: int = 0
    """The number of its node."""
    address_file: str | None = None
    """File with the coordinator's address, which is read again if it may change."""
    memory: NodeMemory | None = None
    """Of its node, for copies that outlive processes."""
    line: int = 0
    """Number of the process on its node."""
    ranks: int = 0
    """Number of its worker's processes, if that is fewer than the job's tensor-parallel ranks; or 0."""
    relay_name: str = ""
    """Name of its agent's socket if that relays messages to the coordinator: see `protocol.near`."""
    is_debugged: bool = False
    """True if it has the terminal, so that a debugger can be opened where an error is raised."""
