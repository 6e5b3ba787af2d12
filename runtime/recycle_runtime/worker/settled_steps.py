"""Reports of a worker process on a step that stands: what became of it once the norm of the whole model is
known, and every so often what its peers must have too, which the coordinator compares."""

from collections.abc import Callable

from recycle_runtime.execution.digest import tensor_digest
from recycle_runtime.execution.optimizer import StepRecord
from recycle_runtime.protocol.messages.generations import Go
from recycle_runtime.protocol.messages.steps import NotFinite, PeerDigest, Settled
from recycle_runtime.worker.held_chunks import HeldChunks

_LEFT_OUT = 0.0


class SettledSteps:
    """One worker tells of every step, and all of one that is skipped."""

    def __init__(self, say: Callable[[Settled], None]) -> None:
        self._say = say
        self._told, self._is_teller = -1, False

    def begin(self, step: int, *, is_teller: bool) -> None:
        """A generation begins with this step; what became of the one before may not have been heard."""
        self._told, self._is_teller = step - 2, is_teller

    def settled(self, chunks: HeldChunks, not_finite: Callable[[int], tuple[NotFinite, ...]]) -> None:
        """The last step of these chunks stands, or was left out."""
        record = chunks.record
        if record is None or record.step <= self._told:
            return
        self._told = record.step
        if self._is_teller or record.factor == _LEFT_OUT:
            self._tell(record, not_finite)

    def tell_now(
        self, step: int, chunks: HeldChunks, not_finite: Callable[[int], tuple[NotFinite, ...]]
    ) -> None:
        """Report the expected outcome of the last step, before anybody acts on it: a script waits for it."""
        record = chunks.outlook()
        if record is None or record.step != step:
            # Its state has come from elsewhere, and those who made the step are gone.
            self._say(Settled(step, None, is_skipped=False))
            return
        self._told = max(self._told, step)
        self._tell(record, not_finite)

    def _tell(self, record: StepRecord, not_finite: Callable[[int], tuple[NotFinite, ...]]) -> None:
        is_skipped = record.factor == _LEFT_OUT
        found = not_finite(record.step) if is_skipped else ()
        self._say(Settled(record.step, record.norm, is_skipped, found))


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
