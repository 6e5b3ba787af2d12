"""Worker processes and the coordinator, about copies in the memory of nodes. No torch."""

from dataclasses import dataclass

from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.members import GridWorker


@dataclass(frozen=True, slots=True)
class CopyKept:
    """My shards of this copy are in the memory of my node."""

    name: str
    memory: str
    """Of the node: see `node_memory`."""
    shards: tuple[str, ...]
    size: Natural
    """Bytes."""
    pause: float
    """Seconds for which training stood still."""
    seconds: float
    """Seconds that the rest took beside training."""


@dataclass(frozen=True, slots=True)
class CopyHeld:
    """The shards that another worker sent me are in the memory of my node."""

    name: str
    memory: str
    size: Natural
    seconds: float


@dataclass(frozen=True, slots=True)
class CopyMissed:
    """I was past the step of this copy when I was asked for it, or busy with another."""

    name: str


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """My part of this copy cannot be done."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class KeepCopy:
    """Copy your shards into the memory of your node when you stand at this step."""

    step: Natural
    name: str
    slot: Natural
    """Number of the place to write to, of two; the other one has the complete copy."""
    keeps: tuple[str, ...]
    """Copies that are still of use."""


@dataclass(frozen=True, slots=True)
class GiveCopy:
    """Send your shards of this copy to another worker, which holds them too."""

    generation: Natural
    name: str
    slot: Natural
    worker: GridWorker


@dataclass(frozen=True, slots=True)
class HoldCopy:
    """Hold the shards of this copy that another worker sends you."""

    generation: Natural
    name: str
    slot: Natural
    worker: GridWorker
    size: Natural
    """Bytes."""


CopyReply = CopyKept | CopyHeld | CopyMissed | CopyFailed


CopyOrder = KeepCopy | GiveCopy | HoldCopy
