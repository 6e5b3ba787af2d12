"""Faults and returns that a run was asked for, to test how it recovers. No torch."""

import re
from collections.abc import Collection
from typing import NamedTuple

from recycle_runtime.coordinator.hooks import CoordinatorHooks
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.members import InjectedFault

KINDS = ("kill", "stop", "term", "exception", "exit", "gil", "hang", "socket", "slow", "half-open")
MIDDLE = -1
"""A position: the instruction in the middle of the stream."""
MOMENTS = {
    "leave": -2,
    "meet": -3,
    "give": -4,
    "take": -5,
    "settle": -6,
    "evaluate": -7,
    "save": -8,
    "copy": -9,
}
"""Positions outside streams: leaving a group, meeting the next one, giving state, taking state, stopping at
a boundary, evaluating at one, saving, for a script or at the end, copying state into the node's memory."""
_EVENT = re.compile(r"(\d{1,9}):(\d{1,9})@(\d{1,9})(?:\.(\d{1,9}|[a-z]+))?", re.ASCII)


class PlannedFault(NamedTuple):
    """Something that a worker does to itself: see `testing.faults`."""

    kind: str
    """With a question mark behind it: not as long as the worker might be the last one of its stage."""
    place: Worker
    step: int
    """If the worker is not there then: the first one that it trains in after it."""
    position: int = MIDDLE
    """The instruction before which it happens, or one of MOMENTS."""


class PlannedReturn(NamedTuple):
    """A worker that is started again."""

    place: Worker
    step: int
    ranks: int = 0
    """With how many tensor-parallel ranks, if fewer than the job has; or 0."""


class FaultTimetable(CoordinatorHooks):
    """Events to come, by step; what has happened is taken off."""

    def __init__(
        self, faults: tuple[PlannedFault, ...] = (), returns: tuple[PlannedReturn, ...] = ()
    ) -> None:
        self._faults = list(faults)
        self._returns = sorted(returns, key=lambda planned: planned.step)

    def faults(self, worker: Worker) -> tuple[InjectedFault, ...]:
        """Of a process that is started now."""
        mine = (fault for fault in self._faults if fault.place == worker)
        return tuple(InjectedFault(fault.kind, fault.step, fault.position) for fault in mine)

    def injected(self, worker: Worker, fault: InjectedFault) -> None:
        """It has happened."""
        planned = PlannedFault(fault.kind, worker, fault.step, fault.position)
        if planned in self._faults:
            self._faults.remove(planned)

    def due_to_join(self, step: int) -> list[Worker]:
        """Workers to be started again by now, in order and once each, as soon as their place is free."""
        return list(dict.fromkeys(planned.place for planned in self._returns if planned.step <= step))

    def ranks(self, worker: Worker) -> int:
        """Of the first return of a worker that is left."""
        return next((planned.ranks for planned in self._returns if planned.place == worker), 0)

    def started(self, worker: Worker) -> None:
        """It has been; if it is due several times, the others wait until it is gone again."""
        self._returns.remove(next(planned for planned in self._returns if planned.place == worker))

    def resume(self, step: int, workers: Collection[Worker]) -> None:
        """A run goes on from this step, with these workers: what was before it has happened."""
        self._faults = [fault for fault in self._faults if fault.step >= step]
        self._returns = [
            planned for planned in self._returns if planned.step >= step or planned.place not in workers
        ]


def fault_timetable(faults: list[PlannedFault], returns: list[PlannedReturn]) -> FaultTimetable:
    return FaultTimetable(tuple(faults), tuple(returns))


def parse_faults(words: Collection[str]) -> list[PlannedFault]:
    """Faults as options give them: `kill=1:2@5`, or `kill=1:2@5.17` for an instruction; ValueError if not."""
    found: list[PlannedFault] = []
    for word in words:
        kind, _, rest = word.partition("=")
        place, step, position = _place_and_step(rest)
        if kind.removesuffix("?") not in KINDS:
            raise ValueError(f"a fault is one of {', '.join(KINDS)}, got {kind!r}")
        found.append(PlannedFault(kind, place, step, position))
    return found


def parse_returns(words: Collection[str]) -> list[PlannedReturn]:
    """Returns as options give them: `1:2@8`, or `1:2@8x2` with two ranks; ValueError if they are not."""
    found: list[PlannedReturn] = []
    for word in words:
        event, _, ranks = word.partition("x")
        if "x" in word and not (ranks.isdecimal() and int(ranks)):
            raise ValueError(f"must be like 1:2@8x2 (with 2 ranks), got {word!r}")
        found.append(PlannedReturn(*_place_and_step(event)[:2], int(ranks or 0)))
    return found


def _place_and_step(word: str) -> tuple[Worker, int, int]:
    found = _EVENT.fullmatch(word)
    if found is None:
        raise ValueError(f"must be like 1:2@5 (pipeline:stage@step, from 0), got {word!r}")
    pipeline, stage, step = map(int, found.groups()[:3])
    return (pipeline, stage), step, _position(found[4])


def _position(word: str | None) -> int:
    if word is None:
        return MIDDLE
    if word.isdigit():
        return int(word)
    if word not in MOMENTS:
        raise ValueError(f"a fault happens before an instruction or at {', '.join(MOMENTS)}, got {word!r}")
    return MOMENTS[word]
