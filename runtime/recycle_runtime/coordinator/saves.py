"""Saves of scripts: who writes them, and when one is complete.

All scripts ask for the same before the same step. The first holder of every stage writes its shards into a
folder that no other attempt has; when all of them have, the manifest is written, and everybody is notified,
also whoever joins and asks later. If a writer fails, the first holders of the next generation write again.
Needs no torch.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from recycle_runtime.coordinator.events import (
    Answer,
    BeginSave,
    CompleteSave,
    DropSave,
    GivenUp,
    Note,
    Order,
    SaveBegun,
    SaveClosed,
    Send,
    Tell,
)
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.participant import (
    Asked,
    Does,
    Follows,
    Hears,
    Memory,
    NewGeneration,
    Participant,
    View,
)
from recycle_runtime.coordinator.save_files import SaveFiles
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import OtherSaves, Saved, SaveOrder, SaveRequest, SaveShare
from recycle_runtime.protocol.messages.steps import StepRow

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
    """True if all shards are on disk."""


@dataclass(slots=True)
class _Open:
    """Asked for, and not complete."""

    folder: str
    stays: bool
    first: Member
    """Member that asked first."""
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
        self._files: SaveFiles | None = None
        self._scripts = Scripts()
        """A save holds what they keep."""
        self._completing: list[CompleteSave] = []
        """Those that lack nothing but that."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "Saves":
        made = cls()
        made._scripts = job.find(Scripts) or made._scripts
        if asked.saves is not None and asked.shape is not None:
            made._files = SaveFiles(
                asked.saves, asked.shape, asked.begins, asked.checkpoints, asked.file_thread("saves"),
                asked.origin,
            )  # fmt: skip
        return made

    def hears(self) -> Hears:
        return {
            SaveRequest: self._hear_request,
            SaveShare: lambda member, said: self._with_scripts(self.hear(member, said)),
        }

    def follows(self) -> Follows:
        return {
            SaveBegun: lambda event: self._with_scripts(self.begun(event.attempt, event.path, event.why)),
            SaveClosed: lambda event: self._with_scripts(self.closed(event.attempt, event.why)),
        }

    def does(self) -> Does:
        files = self._files
        if files is None:
            return {}
        return {
            BeginSave: lambda order: [files.begin(order)],
            CompleteSave: files.complete,
            DropSave: lambda order: files.drop(order.path),
        }

    def recall(self, lines: Lines) -> None:
        self._results = {(result.step, result.number): result for result in lines.values("saved")}
        if self._files is not None:
            self._files.remember(lines.values("saving"))

    def go_on(self, new: NewGeneration) -> None:
        self._writers, self._generation = new.writers(), new.number

    def progress(self, rows: Sequence[StepRow]) -> list[Order]:
        return self._with_scripts(())

    def kept(self, step: int, *, is_known: bool) -> list[Order]:
        return self._with_scripts(())

    def take(self) -> list[SaveClosed]:
        return self._files.take() if self._files is not None and self._open else []

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def sweep(self) -> None:
        if self._files is not None:
            self._files.sweep()

    def _hear_request(self, member: Member, message: SaveRequest) -> list[Answer]:
        orders = self.wants(member, message)
        if isinstance(orders, str):
            return [GivenUp(orders)]
        waits: list[Answer] = []
        if any(isinstance(order, BeginSave) for order in orders):
            other = OtherSaves(member.worker, message.step, message.number)
            waits += [Send(each, other) for each in self.job.roster.active() if each != member]
        return [*waits, *self._with_scripts(orders)]

    def _with_scripts(self, orders: Iterable[Order]) -> list[Order]:
        """With what they keep; that is asked for when a save begins."""
        found: list[Order] = []
        for order in orders:
            if isinstance(order, BeginSave) and order.step > 0:
                found += self._scripts.want_kept(order.step)
            if isinstance(order, CompleteSave) and order.step > 0:
                self._completing.append(order)
            else:
                found.append(order)
        waiting, self._completing = self._completing, []
        for order in waiting:
            if (state := self._scripts.state_before(order.step)) is None:
                self._completing.append(order)
            else:
                found.append(replace(order, script=state))
        return found

    def generation(self, new: NewGeneration) -> list[Order]:
        """Saves that are not on disk are written again."""
        self.go_on(new)
        orders: list[Order] = []
        for key, wanted in self._open.items():
            if wanted.attempt.is_closing:
                continue
            if wanted.attempt.path is not None:
                orders.append(DropSave(wanted.attempt.path))
            wanted.attempt = self._attempt()
            orders.append(BeginSave(wanted.attempt.number, key[0], wanted.folder))
        return self._with_scripts(orders)

    def wants(self, member: Member, message: SaveRequest) -> list[Order] | str:
        """The script of a worker asks; what to do, or what is wrong with that."""
        key = message.step, message.number
        if (known := self._results.get(key)) is not None:
            return [Send(member, known)]
        if (wanted := self._open.get(key)) is None:
            wanted = self._open[key] = _Open(message.folder, message.stays, member, self._attempt())
            return [BeginSave(wanted.attempt.number, message.step, message.folder)]
        if wanted.folder != message.folder:
            here, there = message.folder or "memory", wanted.folder or "memory"
            return (
                f"the script of worker {worker_text(member.worker)} saves to {here}, and that of worker "
                f"{worker_text(wanted.first.worker)} to {there}: every worker runs the same script and asks "
                "for the same"
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
        return [Note({"saving": path}), *(Send(writer, order) for writer in sorted(attempt.writers))]

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
        wanted = self._open.pop(key)
        result = self._results[key] = Saved(*key, path, why)
        step = result.step
        told = [Send(member, result) for member in self.job.roster.active()]
        if why is not None:
            return [Note({"saved": result}), Tell(f"not saved after {step} steps: {why}"), *told]
        words = [Tell(f"saved after {step} steps: {path}")] if wanted.stays else []
        return [Note({"saved": result}), *words, *told]
