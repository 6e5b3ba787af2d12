"""Faults and returns that a run was asked for, to see what becomes of it. Standard library only."""

import re
from typing import Any, NamedTuple

from recycle_runtime.assembly import Worker

KINDS = ("kill", "stop", "term", "exception", "exit", "gil", "hang", "socket")
_EVENT = re.compile(r"(\d{1,9}):(\d{1,9})@(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)


class PlannedFault(NamedTuple):
    """Something that a worker does to itself: see `member.faults`."""

    kind: str
    place: Worker
    step: int
    position: int = -1
    """The instruction before which it happens; negative: the one in the middle."""


class PlannedReturn(NamedTuple):
    """A worker that is started again."""

    place: Worker
    step: int


class Timetable:
    """What is to happen, by step."""

    def __init__(
        self, faults: tuple[PlannedFault, ...] = (), returns: tuple[PlannedReturn, ...] = ()
    ) -> None:
        self._faults = faults
        self._returns = list(returns)

    def faults(self, place: Worker, step: int) -> list[list[Any]]:
        """Of a process that is started at this step."""
        return [
            [fault.kind, fault.step, fault.position]
            for fault in self._faults
            if fault.place == place and fault.step >= step
        ]

    def due_to_join(self, step: int) -> list[Worker]:
        """Who has to be started again by now; each is named once."""
        due = [planned for planned in self._returns if planned.step <= step]
        self._returns = [planned for planned in self._returns if planned.step > step]
        return [planned.place for planned in due]


def timetable(faults: list[PlannedFault], returns: list[PlannedReturn]) -> Timetable:
    return Timetable(tuple(faults), tuple(returns))


def parse_faults(words: list[str]) -> list[PlannedFault]:
    """Faults as options give them: `kill=1:2@5`, or `kill=1:2@5.17` for an instruction; ValueError if not."""
    found: list[PlannedFault] = []
    for word in words:
        kind, _, rest = word.partition("=")
        place, step, position = _place_and_step(rest)
        if kind not in KINDS:
            raise ValueError(f"a fault is one of {', '.join(KINDS)}, got {kind!r}")
        found.append(PlannedFault(kind, place, step, position))
    return found


def parse_returns(words: list[str]) -> list[PlannedReturn]:
    """Returns as options give them: `1:2@8`; ValueError if they are not."""
    return [PlannedReturn(*_place_and_step(word)[:2]) for word in words]


def _place_and_step(word: str) -> tuple[Worker, int, int]:
    found = _EVENT.fullmatch(word)
    if found is None:
        raise ValueError(f"must be like 1:2@5 (pipeline:stage@step, from 0), got {word!r}")
    pipeline, stage, step, position = (int(text) if text else -1 for text in found.groups())
    return (pipeline, stage), step, position
