"""Workers that an agent was ordered to start and that may never have been. Needs no torch.

    ordered              the agent has ended, or its connection has, before it has said what runs
    half ordered         the agent, or the coordinator, has ended between two ranks of a worker

Its processes may run all the same: they come by themselves, and the next agent of the node says that it has
them. So there is a pause before the order is given again.
"""

from collections.abc import Iterable

from recycle_runtime.plan.assembly import Worker


class LostStarts:
    """Workers that may have to be started again, and when."""

    def __init__(self, pause: float) -> None:
        """In seconds: for agents to come back, and for processes to come without them."""
        self._pause = pause
        self._due: dict[Worker, float] = {}

    def note(self, workers: Iterable[Worker], now: float) -> None:
        """Nobody says any more that all processes of these run."""
        for worker in workers:
            self._due.setdefault(worker, now + self._pause)

    def due(self, now: float) -> list[Worker]:
        """Those to be looked at now."""
        return [worker for worker, at in self._due.items() if at <= now]

    def forget(self, worker: Worker) -> None:
        """It has come, or has been started, or is nobody's business any more."""
        self._due.pop(worker, None)
