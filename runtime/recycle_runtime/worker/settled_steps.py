"""Report of a worker process on a step once the norm of the whole model is known."""

from collections.abc import Callable

from recycle_runtime.execution.optimizer import StepRecord
from recycle_runtime.protocol.messages.steps import NotFinite, Settled
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
