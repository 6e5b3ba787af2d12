"""A machine without any buffering, on which streams either reach their end or get stuck.

A receive is posted and goes on. A send holds its worker until the receive that it meets has been posted.
An op holds its worker until its message has been sent, a gathering until the whole group is there. What
finishes here finishes with any amount of buffering.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from recycle_compiler.verifier.plan import MISSING


class Action(IntEnum):
    """What a step of the machine does."""

    POST = 0
    SEND = 1
    TAKE = 2
    GATHER = 3


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The instructions that can wait or wake others, worker after worker."""

    row: list[int]
    """Of the table."""
    action: list[int]
    channel: list[int]
    """The ordered pair of workers that a message travels on, or the group that gathers."""
    rank: list[int]
    """Which message of its channel, which gathering of its group; from 0."""
    other: list[int]
    """The worker at the other end of a message, or MISSING."""
    bounds: list[int]
    """Steps bounds[i] to bounds[i + 1] belong to worker i."""
    group_size: list[int]


@dataclass(slots=True)
class Machine:
    """How far each worker has come, and who sleeps until what."""

    steps: Steps
    cursor: list[int] = field(default_factory=list[int])
    """The step that each worker is at."""
    gathered: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """Group and rank to the workers that have arrived."""
    _ready: list[int] = field(default_factory=list[int])
    _posted: dict[int, int] = field(default_factory=dict[int, int])
    _sent: dict[int, int] = field(default_factory=dict[int, int])
    _senders: dict[int, int] = field(default_factory=dict[int, int])
    _takers: dict[int, int] = field(default_factory=dict[int, int])

    def run(self) -> list[int]:
        """Go as far as possible; the workers that did not reach their end."""
        action, channel, rank, bounds = (
            self.steps.action,
            self.steps.channel,
            self.steps.rank,
            self.steps.bounds,
        )
        handlers = (self._post, self._send, self._take, self._gather)
        self.cursor = bounds[:-1]
        self._ready = list(range(len(self.cursor)))
        while self._ready:
            worker = self._ready.pop()
            step, stop = self.cursor[worker], bounds[worker + 1]
            while step < stop and handlers[action[step]](worker, channel[step], rank[step]):
                step += 1
            self.cursor[worker] = step
        return [worker for worker, step in enumerate(self.cursor) if step < bounds[worker + 1]]

    def _post(self, worker: int, channel: int, rank: int) -> bool:
        self._posted[channel] = rank
        if channel in self._senders:
            self._ready.append(self._senders.pop(channel))
        return True

    def _send(self, worker: int, channel: int, rank: int) -> bool:
        if self._posted.get(channel, MISSING) < rank:
            self._senders[channel] = worker
            return False
        self._sent[channel] = rank
        if channel in self._takers:
            self._ready.append(self._takers.pop(channel))
        return True

    def _take(self, worker: int, channel: int, rank: int) -> bool:
        if self._sent.get(channel, MISSING) < rank:
            self._takers[channel] = worker
            return False
        return True

    def _gather(self, worker: int, group: int, rank: int) -> bool:
        present = self.gathered.setdefault((group, rank), [])
        present.append(worker)
        if len(present) < self.steps.group_size[group]:
            return False
        # The last one to arrive takes the others along.
        for other in present[:-1]:
            self.cursor[other] += 1
            self._ready.append(other)
        return True
