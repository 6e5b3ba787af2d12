"""A worker says every so often what its peers must have too; the coordinator compares."""

from collections.abc import Callable

from recycle_runtime.execution.digest import tensor_digest
from recycle_runtime.protocol.messages.generations import Go
from recycle_runtime.protocol.messages.steps import PeerDigest
from recycle_runtime.worker.held_chunks import HeldChunks


class PeerCheck:
    """After every so many steps, and wherever all workers stop."""

    def __init__(self, say: Callable[[PeerDigest], None]) -> None:
        self._say = say
        self._generation = self._every = 0
        self._said: tuple[int, int] | None = None

    def begin(self, order: Go) -> None:
        """A generation begins."""
        self._generation, self._every = order.generation, order.check_peers

    def settled(self, chunks: HeldChunks, *, at_boundary: bool = False) -> None:
        """The last step of all chunks stands, and nothing of the next one has been used."""
        if not self._every or not chunks.is_part_of_run:
            return
        now = self._generation, chunks.applied
        if now == self._said or not (at_boundary or chunks.applied % self._every == 0):
            return
        self._said = now
        self._say(PeerDigest(*now, tensor_digest(chunks.layers)))
