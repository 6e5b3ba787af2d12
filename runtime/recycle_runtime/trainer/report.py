"""Report of a step, as a script sees it."""

from recycle_runtime.protocol.messages.steps import StepRow, StepSettled
from recycle_runtime.worker.requests import Requests


class Report:
    """Of one step. What concerns the whole job is asked of the coordinator when it is first read.

    Reading it waits until the step counts, that is until every worker has made it; all workers then see the
    same numbers, also those that join later.
    """

    def __init__(self, step: int, requests: Requests) -> None:
        self.step = step
        """Its number, from 0."""
        self._requests = requests
        self._known: StepRow | None = None
        self._settled_as: StepSettled | None = None

    @property
    def loss(self) -> float:
        """The mean over all micro-batches of the step; NaN if nobody knows any more, for a worker has failed
        while there was no coordinator."""
        return self._row.loss_or_nan

    @property
    def seconds(self) -> float:
        """Of the worker that took longest."""
        return self._row.seconds

    @property
    def live(self) -> int:
        """Number of workers that made the step."""
        return self._row.live

    @property
    def plan(self) -> str:
        """Failures on each stage, as the plan of the step has them."""
        return self._row.plan

    @property
    def data_wait(self) -> float:
        """Seconds that the worker waited for data that waited longest."""
        return self._row.data_wait

    @property
    def learning_rate(self) -> float | None:
        """With which the step was made: of the first group of parameters of the last layer."""
        return self._row.learning_rate

    @property
    def gradient_norm(self) -> float | None:
        """Of all gradients before clipping; NaN if they are not finite, None if nobody knows any more."""
        return self._settled.norm

    @property
    def skipped(self) -> bool:
        """True if the step was left out, because its gradients are not finite."""
        return self._settled.is_skipped

    @property
    def _settled(self) -> StepSettled:
        if self._settled_as is None:
            self._settled_as = self._requests.settled(self.step)
        return self._settled_as

    @property
    def _row(self) -> StepRow:
        if self._known is None:
            self._known = self._requests.row(self.step)
        return self._known

    def __repr__(self) -> str:
        if self._known is None:
            return f"Report(step={self.step})"
        return f"Report(step={self.step}, loss={self._known.loss!r}, seconds={self._known.seconds!r})"
