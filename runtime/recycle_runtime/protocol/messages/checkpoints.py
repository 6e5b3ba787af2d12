"""Worker processes and the coordinator, about checkpoints. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.protocol.codec import Natural


class CheckpointOrder(NamedTuple):
    """A checkpoint to write one's shards of."""

    step: Natural
    name: str


class CheckpointPath(NamedTuple):
    """A complete checkpoint."""

    path: str
    step: Natural


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """My shards of this checkpoint are on disk."""

    name: str
    shards: Mapping[str, Natural]
    """The checksum of each one's description."""
    seed: Natural


@dataclass(frozen=True, slots=True)
class CheckpointMissed:
    """I was past the step of this checkpoint when I was asked for it."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """My shards of this checkpoint cannot be written."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Write your shards of this checkpoint when you stand at this step."""

    step: Natural
    name: str


CheckpointReply = CheckpointWritten | CheckpointMissed | CheckpointFailed
