"""Worker processes and the coordinator, about layers that go to other workers. No torch."""

from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.generations import Copied, LayerShards
from recycle_runtime.protocol.messages.members import GridWorker


class LayersToMove(NamedTuple):
    """Layers on their way from one worker to another."""

    worker: GridWorker
    """At the other end."""
    first: Natural
    last: Natural
    """The first one beyond them; where there are none, only shards travel."""
    shards: tuple[LayerShards, ...] = ()
    """Of optimizer state, of these layers or others."""


@dataclass(frozen=True, slots=True)
class LayersArrived:
    """The layers that I was to take are here, and as new as those of the workers that sent them."""

    generation: Natural
    move: Natural
    copied: Copied


@dataclass(frozen=True, slots=True)
class LayersLost:
    """The layers that I was to take will not come."""

    generation: Natural
    move: Natural
    why: str


@dataclass(frozen=True, slots=True)
class MoveLayers:
    """Give layers to others and take layers from others, while you train."""

    generation: Natural
    move: Natural
    """Its number in the job; a generation may see several, between the same workers."""
    gives: tuple[LayersToMove, ...]
    takes: tuple[LayersToMove, ...]


@dataclass(frozen=True, slots=True)
class DropLayers:
    """The cut stays as it is: forget about layers that were to move."""

    generation: Natural


MoveReply = LayersArrived | LayersLost
MoveOrder = MoveLayers | DropLayers
