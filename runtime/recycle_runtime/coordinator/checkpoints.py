"""Checkpoints: when they are taken, and when one is complete.

One checkpoint is under way at a time. Its step is sent to one writer for every rank of every stage, early
enough that none has got there; each copies its state when it stands exactly there, and none waits. When
all have said which shards they have put on disk, the manifest is written. A checkpoint that cannot become
complete, because a writer died or got it too late, is given up, and another is taken. Files are for others
to touch: see `checkpoint_files`. Needs no torch.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import PurePath

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, CheckpointFolder, checkpoint_name, is_copy
from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest, Origin
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles
from recycle_runtime.coordinator.events import (
    BeginCheckpoint,
    CheckpointClosed,
    CheckpointNotBegun,
    CompleteCheckpoint,
    DropCheckpoint,
    Order,
    PruneCheckpoints,
    Send,
    Tell,
)
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
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointOrder,
    CheckpointPath,
    CheckpointReply,
    CheckpointWritten,
    TakeCheckpoint,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import StepRow

_EARLY = 2
"""Steps after the last that is known to be made by all: no worker should be there yet."""
_EARLIEST = 64


@dataclass(slots=True)
class _Attempt:
    step: int
    name: str
    writers: frozenset[Member]
    done: set[Member] = field(default_factory=set[Member])
    """Those who have written."""
    shards: dict[str, int] = field(default_factory=dict[str, int])
    """Those that are on disk, with their checksums."""
    is_closing: bool = False
    """True if the manifest is on its way to disk."""

    def waits_for(self, member: Member) -> bool:
        return not self.is_closing and member in self.writers - self.done


class Checkpoints(Participant):
    """Decides at which steps, keeps count of shards, completes and deletes."""

    memory = (
        Memory(
            "checkpoints",
            said=(CheckpointWritten, CheckpointMissed, CheckpointFailed),
            lost="complete ones are on disk; one under way is given up, and the next one is taken",
        ),
    )

    def __init__(
        self,
        folder: str,
        shape: CheckpointShape,
        every: int,
        steps: int,
        begins: Beginning,
        names: Collection[str] = (),
        newest: CheckpointPath | None = None,
        origin: Origin | None = None,
    ) -> None:
        """`names` are those that the folder has already; `newest` may be from another coordinator."""
        self._begins, self._origin = begins, origin
        self._folder, self._shape, self._every, self._steps = PurePath(folder), shape, every, steps
        self._names = set(names)
        self.newest = newest
        """The last complete one."""
        if newest is None and begins.checkpoint is not None and not is_copy(begins.checkpoint):
            self.newest = CheckpointPath(str(self._folder / begins.checkpoint), begins.step)
        self._attempt: _Attempt | None = None
        self._passed = max(begins.step, 0 if newest is None else newest.step)
        """The last step whose checkpoint is there or has been given up for good."""
        self._early = _EARLY
        self._is_stopped = False
        self._writers: frozenset[Member] = frozenset()
        self._stand = self._next = 0
        self._files: CheckpointFiles | None = None
        self._scripts: Scripts | None = None
        """Of a job that has some: a checkpoint holds what they keep."""
        self._completing: CompleteCheckpoint | None = None
        """The checkpoint that lacks nothing but that."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "Checkpoints | None":
        if asked.checkpoints is None or asked.shape is None:
            return None
        kept_folder, newest = CheckpointFolder(asked.checkpoints), None
        if asked.is_under_way:
            # The coordinator before this one may have completed some.
            for found in kept_folder.look()[0][:1]:
                newest = CheckpointPath(str(kept_folder.folder / found.name), found.manifest.step)
        made = cls(
            asked.checkpoints, asked.shape, asked.every, asked.steps, asked.begins, kept_folder.names(),
            newest, asked.origin,
        )  # fmt: skip
        made._files = CheckpointFiles(asked.checkpoints, asked.file_thread("checkpoints"))
        made._scripts = job.find(Scripts) if asked.has_scripts else None
        return made

    def hears(self) -> Hears:
        kinds = (CheckpointWritten, CheckpointMissed, CheckpointFailed)
        return dict.fromkeys(kinds, lambda member, said: self._with_scripts(self.hear(member, said)))

    def follows(self) -> Follows:
        return {
            CheckpointNotBegun: lambda event: self._with_scripts(self.not_begun(event.name, event.why)),
            CheckpointClosed: lambda event: self._with_scripts(self.closed(event.name, event.why)),
        }

    def does(self) -> Does:
        return {} if self._files is None else self._files.does()

    @property
    def is_finished(self) -> bool:
        return self._attempt is None and self._passed >= self._steps

    # What happens to the job.

    def go_on(self, new: NewGeneration) -> None:
        self._writers = new.writers()
        if self._origin is not None:
            self._origin = replace(self._origin, workers=len({member.worker for member in new.members}))

    def generation(self, new: NewGeneration) -> list[Order]:
        self.go_on(new)
        self._stand = self._next = step = new.step
        attempt = self._attempt
        if attempt is not None and not attempt.is_closing:
            gone = any(attempt.waits_for(writer) and writer not in new.members for writer in attempt.writers)
            # Whoever stood at its step, or before it, may make that step again.
            if gone or step <= attempt.step:
                self._attempt = None
        if self._attempt is None and (due := self._due(step)) is not None:
            return self._with_scripts(self._begin(due))
        return []

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        attempt = self._attempt
        if attempt is None or attempt.step < self._stand or not attempt.waits_for(member):
            return None
        return CheckpointOrder(attempt.step, attempt.name)

    def progress(self, rows: Sequence[StepRow]) -> list[Order]:
        return self._with_scripts(self.stand(rows[-1].step + 1))

    def kept(self, step: int, *, is_known: bool) -> list[Order]:
        if is_known or self._completing is None or self._completing.manifest.step != step:
            return self._with_scripts(())
        # It was asked for when the script had gone on.
        name, self._completing = self._completing.name, None
        return self._with_scripts(self.closed(name, "the scripts were past its step"))

    def stand(self, step: int) -> list[Order]:
        """All steps before this one have been made by all."""
        self._next = step
        if self._attempt is not None or (due := self._due(step + self._early)) is None:
            return []
        begun = self._begin(due)
        asked = {member: self.asked_of(member) for member in sorted(self._writers)}
        told = [Send(member, TakeCheckpoint(*order)) for member, order in asked.items() if order is not None]
        return [*begun, *told]

    def drop(self, member: Member) -> None:
        if self._attempt is not None and self._attempt.waits_for(member):
            self._attempt = None

    def miss(self, member: Member) -> None:
        self.drop(member)

    def wait(self, steps: int) -> list[Order]:
        """All steps are made, and every worker waits until the last checkpoint is complete."""
        return self._with_scripts(self.stand(steps))

    def stop(self) -> None:
        self._is_stopped = True

    def end_with(self, steps: int) -> None:
        self._steps = steps
        if self._attempt is not None and self._attempt.step > steps:
            self._attempt = None

    # What writers say, and what becomes of files.

    def hear(self, member: Member, message: CheckpointReply) -> list[Order]:
        attempt = self._attempt
        if attempt is None or message.name != attempt.name or not attempt.waits_for(member):
            return []
        match message:
            case CheckpointFailed(_, why):
                return self._give_up(attempt, why)
            case CheckpointMissed():
                self._early = min(2 * self._early, _EARLIEST)
                if attempt.step < self._steps:
                    return self._give_up(attempt, "")
                # All wait behind the last step, until it is written.
                self._attempt = None
            case CheckpointWritten(_, shards, seed):
                attempt.shards |= shards
                attempt.done.add(member)
                if attempt.done >= attempt.writers:
                    return self._complete(attempt, seed)
        return []

    def not_begun(self, name: str, why: str) -> list[Order]:
        attempt = self._attempt
        if attempt is None or attempt.name != name:
            return []
        return self._give_up(attempt, why)

    def closed(self, name: str, why: str | None) -> list[Order]:
        attempt = self._attempt
        if attempt is None or attempt.name != name:
            return []
        if why is not None:
            return self._give_up(attempt, why)
        self.newest = CheckpointPath(str(self._folder / name), attempt.step)
        self._attempt, self._passed, self.failure = None, attempt.step, None
        told = Tell(f"checkpoint of step {attempt.step}: {self.newest.path}")
        return [PruneCheckpoints(name), told, *self.stand(self._next)]

    # Files.

    def take(self) -> list[CheckpointClosed]:
        return [] if self._files is None else self._files.take()

    def finish(self) -> Iterator[CheckpointClosed]:
        if self._files is not None:
            yield from self._files.finish()
            # Not before that: a checkpoint that is complete now makes older ones go.
            self._files.close()

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def sweep(self) -> None:
        if self._files is not None:
            self._files.sweep()

    # Inside.

    def _with_scripts(self, orders: Iterable[Order]) -> list[Order]:
        """With what they keep, if there are any; that is asked for when a checkpoint begins."""
        if self._scripts is None:
            return [*orders]
        found: list[Order] = []
        for order in orders:
            if isinstance(order, BeginCheckpoint) and self._attempt is not None:
                found += self._scripts.want_kept(self._attempt.step)
            if isinstance(order, CompleteCheckpoint):
                self._completing = order
            else:
                found.append(order)
        order = self._completing
        if order is not None and (state := self._scripts.state_before(order.manifest.step)) is not None:
            self._completing = None
            found.append(replace(order, script=state))
        return found

    def _due(self, least: int) -> int | None:
        """The next step to take one at; the last step of the run always is one."""
        if self._passed >= self._steps or self._is_stopped:
            return None
        least = max(least, self._passed + 1)
        return min(-(-least // self._every) * self._every, self._steps)

    def _begin(self, step: int) -> list[Order]:
        """Each attempt has a name of its own, so that no process overwrites the files of another."""
        name = next(
            name for attempt in count() if (name := checkpoint_name(step, attempt)) not in self._names
        )
        self._names.add(name)
        self._attempt = _Attempt(step, name, self._writers)
        return [BeginCheckpoint(name)]

    def _give_up(self, attempt: _Attempt, why: str) -> list[Order]:
        self._passed = max(self._passed, attempt.step)
        self._attempt = None
        if not why:
            # Other writers may be at it; it goes with the next one that is complete.
            return []
        self.failure = f"no checkpoint of step {attempt.step}: {why}"
        return [Tell(self.failure), DropCheckpoint(attempt.name)]

    def _complete(self, attempt: _Attempt, seed: int) -> list[Order]:
        shape = self._shape.with_shards(attempt.shards)
        if not shape.is_made_of(attempt.shards):
            return self._give_up(attempt, "the workers' shards are not those of a whole model")
        attempt.is_closing = True
        items = self._begins.item + (attempt.step - self._begins.step) * shape.per_step
        manifest = Manifest(attempt.step, items, seed, shape, dict(attempt.shards), self._origin)
        return [CompleteCheckpoint(attempt.name, manifest)]
