"""When checkpoints are taken, and when one is complete: belongs to the job's state machine.

One checkpoint is under way at a time. Its step is told to one writer for every rank of every stage, early
enough that none has got there; each copies its state when it stands exactly there, and none waits. When
all have said which shards they have put on disk, the manifest is written. A checkpoint that cannot become
complete, because a writer died or was told too late, is given up, and another is taken. Files are for others
to touch: see `checkpoint_files`. Standard library only.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import PurePath

from recycle_runtime.checkpoint.manifest import Manifest, Origin, Shape
from recycle_runtime.checkpoint.shelf import Beginning, is_copy, name_of
from recycle_runtime.coordinator.events import (
    BeginCheckpoint,
    CompleteCheckpoint,
    DropCheckpoint,
    Order,
    PruneCheckpoints,
    Send,
    Tell,
)
from recycle_runtime.coordinator.participant import Memory, Participant
from recycle_runtime.plan.worker_ids import Worker
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
    """Whether the manifest is on its way to disk."""

    def waits_for(self, member: Member) -> bool:
        return not self.is_closing and member in self.writers - self.done


class NoCheckpoints(Participant):
    """Of a job without checkpoints: nothing is taken, and nothing waited for."""

    memory = (
        Memory(
            "checkpoints",
            said=(CheckpointWritten, CheckpointMissed, CheckpointFailed),
            lost="complete ones are on disk; one under way is given up, and the next one is taken",
        ),
    )

    newest: CheckpointPath | None = None
    """The last complete one."""
    failure: str | None = None
    """Why there is no newer one, if one could not be written since."""

    def __init__(self, begins: Beginning | None = None) -> None:
        self.begins = begins or Beginning()
        """Where the run begins."""

    are_kept = False

    @property
    def step(self) -> int:
        """Of the checkpoint that is under way."""
        return 0

    @property
    def is_finished(self) -> bool:
        """Whether nothing has to be waited for at the end of the run."""
        return True

    def train(self, members: Sequence[Member], stages: Mapping[Worker, int]) -> None:
        """These are there now, on these stages: the first peer of each writes."""

    def regroup(self, step: int, members: Sequence[Member], stages: Mapping[Worker, int]) -> list[Order]:
        """A new generation begins with this step; no worker has passed it."""
        return []

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        """What a process is told to write when a generation begins, if anything."""

    def progress(self, step: int) -> list[Order]:
        """All steps before this one have been made by all."""
        return []

    def drop(self, member: Member) -> None:
        """It is gone, or may not be heard."""

    def hear(self, member: Member, message: CheckpointReply) -> list[Order]:
        """A shard is on disk, or will never be."""
        return []

    def not_begun(self, name: str, why: str) -> list[Order]:
        """The folder of a checkpoint could not be made."""
        return []

    def closed(self, name: str, why: str | None) -> list[Order]:
        """A manifest has reached the disk, or cannot."""
        return []

    def stop(self) -> None:
        """Nothing more is begun; a manifest that is being written counts."""

    def end_with(self, steps: int) -> None:
        """The run has so many steps, as has just become known; all of them are made."""


class Checkpoints(NoCheckpoints):
    """Decides at which steps, keeps count of shards, completes and deletes."""

    are_kept = True

    def __init__(
        self,
        folder: str,
        shape: Shape,
        every: int,
        steps: int,
        begins: Beginning,
        names: Collection[str] = (),
        newest: CheckpointPath | None = None,
        origin: Origin | None = None,
    ) -> None:
        """`names` are those that the folder has already; `newest` may be from another coordinator."""
        super().__init__(begins)
        self._origin = origin
        self._folder, self._shape, self._every, self._steps = PurePath(folder), shape, every, steps
        self._names = set(names)
        self.newest = newest
        if newest is None and begins.checkpoint is not None and not is_copy(begins.checkpoint):
            self.newest = CheckpointPath(str(self._folder / begins.checkpoint), begins.step)
        self._attempt: _Attempt | None = None
        self._passed = max(begins.step, 0 if newest is None else newest.step)
        """The last step whose checkpoint is there or has been given up for good."""
        self._early = _EARLY
        self._is_stopped = False
        self._writers: frozenset[Member] = frozenset()
        self._stand = self._next = 0

    @property
    def step(self) -> int:
        return 0 if self._attempt is None else self._attempt.step

    @property
    def is_finished(self) -> bool:
        return self._attempt is None and self._passed >= self._steps

    # What happens to the job.

    def train(self, members: Sequence[Member], stages: Mapping[Worker, int]) -> None:
        first: dict[int, Worker] = {}
        for member in sorted(members):
            if member.worker in stages:
                first.setdefault(stages[member.worker], member.worker)
        self._writers = frozenset(member for member in members if member.worker in first.values())
        if self._origin is not None:
            self._origin = replace(self._origin, workers=len({member.worker for member in members}))

    def regroup(self, step: int, members: Sequence[Member], stages: Mapping[Worker, int]) -> list[Order]:
        self.train(members, stages)
        self._stand = self._next = step
        attempt = self._attempt
        if attempt is not None and not attempt.is_closing:
            gone = any(attempt.waits_for(writer) and writer not in members for writer in attempt.writers)
            # Whoever stood at its step, or before it, may make that step again.
            if gone or step <= attempt.step:
                self._attempt = None
        if self._attempt is None and (due := self._due(step)) is not None:
            return self._begin(due)
        return []

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        attempt = self._attempt
        if attempt is None or attempt.step < self._stand or not attempt.waits_for(member):
            return None
        return CheckpointOrder(attempt.step, attempt.name)

    def progress(self, step: int) -> list[Order]:
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
        return [PruneCheckpoints(name), told, *self.progress(self._next)]

    # Inside.

    def _due(self, least: int) -> int | None:
        """The next step to take one at; the last step of the run always is one."""
        if self._passed >= self._steps or self._is_stopped:
            return None
        least = max(least, self._passed + 1)
        return min(-(-least // self._every) * self._every, self._steps)

    def _begin(self, step: int) -> list[Order]:
        """Each attempt has a name of its own, so that no process overwrites the files of another."""
        name = next(name for attempt in count() if (name := name_of(step, attempt)) not in self._names)
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
        if sorted(attempt.shards) != sorted(shape.shards):
            return self._give_up(attempt, "the workers' shards are not those of a whole model")
        attempt.is_closing = True
        items = self.begins.item + (attempt.step - self.begins.step) * shape.per_step
        manifest = Manifest(attempt.step, items, seed, shape, dict(attempt.shards), self._origin)
        return [CompleteCheckpoint(attempt.name, manifest)]
