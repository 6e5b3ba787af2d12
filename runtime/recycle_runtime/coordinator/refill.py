"""Restart times of failed workers, and nodes that are avoided. Needs no torch.

    it ended          started again after
    once              1 s
    again, soon       2 s, 4 s, 8 s, ... 5 min
    after 5 min       1 s: what it died of before is forgotten

A node on which a worker has died twice in a row, or on which several have died again and again, is avoided as
long as another one has room: the machine may be at fault, and the log names it. If no other has, and the
program can run with fewer tensor-parallel ranks, the worker is started there with the next smaller number of
them, and with fewer still after two more deaths: a device may have failed, and the others be well.

A worker that an agent was ordered to start may never have been:

    ordered              the agent has ended, or its connection has, before it has said what runs
    half ordered         the agent, or the coordinator, has ended between two ranks of a worker

Its processes may run all the same: they come by themselves, and the next agent of the node says that it has
them. So there is a pause before the order is given again.
"""

from collections import Counter
from collections.abc import Iterable

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.worker_ids import worker_text

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 300.0
_PROVEN = 300.0
"""Seconds after which a process has shown that it can live where it is."""
_MOST_DEATHS = 2
"""Of one worker on one node, before others are tried."""
_MOST_DEATHS_OF_ALL = 4


class Refill:
    """Ends of the processes of each worker, and the time of the next attempt."""

    def __init__(self) -> None:
        self._due: dict[Worker, float] = {}
        """Failed workers, and when they may be started again; those that nobody knows of may be at once."""
        self._began: dict[Worker, tuple[str, float]] = {}
        """On which node, and when."""
        self._pauses: dict[Worker, float] = {}
        """Before the last start."""
        self._deaths: Counter[tuple[str, Worker]] = Counter()
        """Of processes that did not live long, by node."""

    def started(self, worker: Worker, node: str, now: float) -> None:
        """Its processes are being started there."""
        self._due.pop(worker, None)
        self._began[worker] = node, now

    def ended(self, worker: Worker, node: str, now: float) -> str | None:
        """A process of it has; what there is to say about the node, once.

        Another of its processes may have ended before: that is the same failure.
        """
        if worker in self._due:
            return None
        began, lived = self._began.pop(worker, None), _PROVEN
        if began is not None:
            node, lived = began[0], now - began[1]
        is_again = lived < _PROVEN
        pause = min(2 * self._pauses.get(worker, 0.0), LONGEST_PAUSE) if is_again else 0.0
        self._pauses[worker] = max(pause, FIRST_PAUSE)
        self._due[worker] = now + self._pauses[worker]
        if not is_again:
            self._deaths.pop((node, worker), None)
            return None
        was_avoided = self._is_bad(node, worker)
        self._deaths[node, worker] += 1
        if was_avoided or not self._is_bad(node, worker):
            return None
        times = self._deaths[node, worker]
        where = host_of(node)
        name = worker_text(worker)
        return f"{name} has died {times} times on {where}: it is started elsewhere if there is room"

    def lost(self, worker: Worker, now: float) -> None:
        """Its node is gone: nothing is known about the worker itself."""
        if worker not in self._due:
            self._began.pop(worker, None)
            self._due[worker] = now + FIRST_PAUSE

    def new_node(self) -> None:
        """Somewhere else there is room: nobody waits for the end of a pause."""
        self._due.clear()

    def due(self, missing: Iterable[Worker], now: float) -> list[Worker]:
        """Those of them that may be started now."""
        return [worker for worker in missing if self._due.get(worker, now) <= now]

    def avoided(self, worker: Worker, nodes: Iterable[str], smaller: int = 0) -> frozenset[str]:
        """Of these nodes, those where it should not be started if it can be elsewhere; `smaller`: how many
        numbers of ranks have been tried that are larger."""
        return frozenset(node for node in nodes if self._is_bad(node, worker, smaller))

    def _is_bad(self, node: str, worker: Worker, smaller: int = 0) -> bool:
        if self._deaths[node, worker] >= _MOST_DEATHS * (1 + smaller):
            return True
        if smaller:
            return False
        of_all = [deaths for (other, _), deaths in self._deaths.items() if other == node]
        return len(of_all) > 1 and sum(of_all) >= _MOST_DEATHS_OF_ALL


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


def host_of(node: str) -> str:
    """The machine in the name of an agent, `host/number`."""
    return node.rpartition("/")[0] or node or "its node"
