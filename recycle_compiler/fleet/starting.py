"""Machines that come have to start their processes first, so whoever waits for that sees them later.

A policy that starts all processes anew at every change has that time in its restarts, and sees a machine at
once. All others see a worker as down until it has started, be it one that returns or one on a spare machine.
"""

from collections.abc import Iterable, Iterator

from recycle_compiler.fleet.policy import Change, Worker

_AT_ONCE = frozenset({"restart", "varuna", "fault-scaled", "fault-free", "zero-bubble"})
"""Policies whose restarts include it, and those for whom changes cost nothing."""


def as_seen_by(policy: str, changes: Iterable[Change], start_up: float) -> Iterator[Change]:
    """The changes as a policy of this name gets to know them."""
    if policy in _AT_ONCE or not start_up:
        return iter(changes)
    return _after_start_up(changes, start_up)


def _after_start_up(changes: Iterable[Change], start_up: float) -> Iterator[Change]:
    ready: dict[Worker, float] = {}
    """When who will have started."""
    down: frozenset[Worker] = frozenset()
    spare = 0
    for change in changes:
        yield from _started(ready, change.at, down, spare)
        lost = change.lost - ready.keys()
        for worker in change.lost:
            ready.pop(worker, None)
        returned = frozenset(worker for worker, at in ready.items() if at <= change.at)
        for worker in returned:
            del ready[worker]
        ready.update(dict.fromkeys(sorted(change.returned), change.at + start_up))
        if lost or returned or change.spare != spare:
            yield Change(change.at, lost, returned, change.down | ready.keys(), change.spare)
        down, spare = change.down, change.spare
    yield from _started(ready, float("inf"), down, spare)


def _started(
    ready: dict[Worker, float], until: float, down: frozenset[Worker], spare: int
) -> Iterator[Change]:
    """Those who have started before this moment, and are not there for longer."""
    while ready and (at := min(ready.values())) < until:
        returned = frozenset(worker for worker, moment in ready.items() if moment == at)
        for worker in returned:
            del ready[worker]
        yield Change(at, frozenset(), returned, down | ready.keys(), spare)
