"""What a worker process says about a step once the norm of the whole model is known."""

from collections.abc import Callable

from recycle_runtime.execution.optimizer.undo import groups_of
from recycle_runtime.protocol.messages import NotFinite, Settled
from recycle_runtime.worker.held_chunks import HeldChunks

_LEFT_OUT = 0.0


class SettledSteps:
    """One worker tells of every step, and all of one that is skipped."""

    def __init__(self, say: Callable[[Settled], None]) -> None:
        self._say = say
        self._told, self._is_teller = -1, False
        self._rate: float | None = None
        """Of the step under way: whoever changes it does so at the end of a step."""

    def begin(self, chunks: HeldChunks, step: int, *, is_teller: bool) -> None:
        """A generation begins with this step; what became of the one before may not have been heard."""
        self._told, self._is_teller, self._rate = step - 2, is_teller, _rate(chunks)

    def settled(self, chunks: HeldChunks, not_finite: Callable[[int], tuple[NotFinite, ...]]) -> None:
        """The last step of these chunks stands, or was left out."""
        record = chunks.record
        if record is None or record.step <= self._told:
            return
        self._told = record.step
        rate, self._rate = self._rate, _rate(chunks)
        is_skipped = record.factor == _LEFT_OUT
        if is_skipped:
            self._say(Settled(record.step, record.norm, True, rate, not_finite(record.step)))
        elif self._is_teller:
            self._say(Settled(record.step, record.norm, False, rate))


def _rate(chunks: HeldChunks) -> float | None:
    chunk = list(chunks.values())[-1]
    groups = groups_of(chunk.stepper.optimizer)
    rate = groups[0].get("lr") if groups else None
    return None if rate is None else float(rate)
