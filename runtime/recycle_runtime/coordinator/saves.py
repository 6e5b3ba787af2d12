"""What scripts save, and when it is complete: belongs to the job's state machine.

All scripts ask for the same before the same step. The first holder of every stage writes its shards into a
folder that no other attempt has; when all of them have, the manifest is written, and everybody is told,
also whoever joins and asks later. If a writer fails, the first holders of the next generation write again.
Standard library only.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import count

from recycle_runtime.coordinator.events import BeginSave, CompleteSave, DropSave, Order, Send, TellSaved
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.membership import name_of
from recycle_runtime.coordinator.participant import Memory, Participant
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import Saved, SaveOrder, SaveRequest, SaveShare

_Key = tuple[int, int]
"""The step before which it was asked for, and the number among those before the same step."""


@dataclass(slots=True)
class _Attempt:
    number: int
    writers: frozenset[Member]
    path: str | None = None
    """None until there is a folder."""
    done: set[Member] = field(default_factory=set[Member])
    shards: dict[str, int] = field(default_factory=dict[str, int])
    is_closing: bool = False
    """Whether all shards are on disk."""


@dataclass(slots=True)
class _Open:
    """Asked for, and not complete."""

    folder: str
    first: Member
    """Who asked first."""
    attempt: _Attempt


class Saves(Participant):
    """Keeps count of requests and shards."""

    memory = (
        Memory(
            "saves of scripts",
            said=(SaveRequest, SaveShare),
            journal={"saved": Field(Saved), "saving": Field(str)},
            again="after `recall`, while the script waits; shares of an attempt that the coordinator before "
            "this one began count for nothing, and all is written again",
        ),
    )

    def __init__(self) -> None:
        self._numbers = count()
        self._open: dict[_Key, _Open] = {}
        self._results: dict[_Key, Saved] = {}
        self._writers: frozenset[Member] = frozenset()
        self._generation = 0

    def recall(self, lines: Lines) -> None:
        self._results = {(result.step, result.number): result for result in lines.values("saved")}

    def begin(
        self, generation: int, members: Collection[Member], stages: Mapping[Worker, int]
    ) -> list[Order]:
        """These train from now on, on these stages: what is not on disk is written again."""
        first: dict[int, Worker] = {}
        for member in sorted(members):
            if member.worker in stages:
                first.setdefault(stages[member.worker], member.worker)
        self._writers = frozenset(member for member in members if member.worker in first.values())
        self._generation = generation
        orders: list[Order] = []
        for key, wanted in self._open.items():
            if wanted.attempt.is_closing:
                continue
            if wanted.attempt.path is not None:
                orders.append(DropSave(wanted.attempt.path))
            wanted.attempt = self._attempt()
            orders.append(BeginSave(wanted.attempt.number, key[0], wanted.folder))
        return orders

    def wants(self, member: Member, message: SaveRequest) -> list[Order] | str:
        """The script of a worker asks; what to do, or what is wrong with that."""
        key = message.step, message.number
        if (known := self._results.get(key)) is not None:
            return [Send(member, known)]
        if (wanted := self._open.get(key)) is None:
            wanted = self._open[key] = _Open(message.folder, member, self._attempt())
            return [BeginSave(wanted.attempt.number, message.step, message.folder)]
        if wanted.folder != message.folder:
            here, there = message.folder or "memory", wanted.folder or "memory"
            return (
                f"the script of worker {name_of(member.worker)} saves to {here}, and that of worker "
                f"{name_of(wanted.first.worker)} to {there}: every worker runs the same script and asks for "
                "the same"
            )
        if wanted.attempt.path is not None and member in wanted.attempt.writers - wanted.attempt.done:
            # It may not have been here when all others were told.
            return [Send(member, SaveOrder(self._generation, *key, wanted.attempt.path))]
        return []

    def begun(self, number: int, path: str, why: str | None) -> list[Order]:
        """There is a folder for an attempt, or there cannot be one."""
        found = self._find(lambda attempt: attempt.number == number)
        if found is None:
            return [DropSave(path)] if why is None else []
        key, attempt = found
        if why is not None:
            return self._finish(key, path, why)
        attempt.path = path
        order = SaveOrder(self._generation, *key, path)
        return [Send(writer, order) for writer in sorted(attempt.writers)]

    def hear(self, member: Member, share: SaveShare) -> list[Order]:
        """A writer has done its part, or cannot."""
        found = self._find(lambda attempt: attempt.path == share.path)
        if found is None or member not in found[1].writers - found[1].done:
            return []
        key, attempt = found
        if share.error is not None:
            return [DropSave(share.path), *self._finish(key, share.path, share.error)]
        attempt.done.add(member)
        attempt.shards |= share.shards
        if attempt.done < attempt.writers:
            return []
        attempt.is_closing = True
        return [CompleteSave(attempt.number, key[0], share.path, dict(attempt.shards), share.seed)]

    def closed(self, number: int, why: str | None) -> list[Order]:
        """A manifest has reached the disk, or cannot."""
        found = self._find(lambda attempt: attempt.number == number)
        if found is None:
            return []
        key, attempt = found
        assert attempt.path is not None
        dropped = [] if why is None else [DropSave(attempt.path)]
        return [*dropped, *self._finish(key, attempt.path, why)]

    def _attempt(self) -> _Attempt:
        return _Attempt(next(self._numbers), self._writers)

    def _find(self, fits: Callable[[_Attempt], bool]) -> tuple[_Key, _Attempt] | None:
        return next(
            ((key, wanted.attempt) for key, wanted in self._open.items() if fits(wanted.attempt)), None
        )

    def _finish(self, key: _Key, path: str, why: str | None) -> list[Order]:
        del self._open[key]
        result = self._results[key] = Saved(*key, path, why)
        return [TellSaved(result)]
