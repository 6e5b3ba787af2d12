"""When checkpoints are taken, and when one is complete: the coordinator's part. Standard library only.

One checkpoint is under way at a time. Its step is told to one writer for every part of every stage, early
enough that none has got there; each copies its state when it stands exactly there, and nobody waits. When
all have said that their part is on disk, the manifest is written. A checkpoint that cannot become complete,
because a writer died or was told too late, is given up, and another is taken.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from recycle_runtime.checkpoint.manifest import Manifest, Shape, part_name
from recycle_runtime.checkpoint.shelf import Beginning, Shelf
from recycle_runtime.protocol.messages import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointOrder,
    CheckpointPath,
    CheckpointReply,
    CheckpointWritten,
    Member,
    TakeCheckpoint,
)

_EARLY = 2
"""Steps after the last that is known to be made by all: nobody should be there yet."""
_EARLIEST = 64
_CLOSE_SECONDS = 10.0


@dataclass(slots=True)
class _Attempt:
    step: int
    name: str
    writers: dict[Member, str]
    """Who writes which part."""
    parts: dict[str, int] = field(default_factory=dict[str, int])
    """Those that are on disk, with their checksums."""
    closing: "Future[None] | None" = None
    """The manifest on its way to disk."""

    def waits_for(self, member: Member) -> bool:
        return self.closing is None and self.writers.get(member) not in (None, *self.parts)


class NoSaving:
    """Of a job without checkpoints: nothing is taken, and nothing waited for."""

    newest: CheckpointPath | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing has to be waited for at the end of the run."""
        return True

    def look(self) -> None:
        """For a coordinator that starts again: the one before it may have completed some."""

    def train(self, members: Sequence[Member]) -> None:
        """These are there now: the first peer of each stage writes."""

    def regroup(self, step: int, members: Sequence[Member]) -> None:
        """A new generation begins with this step; nobody has passed it."""

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        """What a member is told when a generation begins: a step and a name, if it is to write."""

    def progress(self, step: int) -> None:
        """All steps before this one have been made by all."""

    def lose(self, member: Member) -> None:
        """It is gone, or may not be heard."""

    def hear(self, member: Member, message: CheckpointReply) -> None:
        """A part is on disk, or will never be."""

    def poll(self) -> None:
        """Look whether a manifest has reached the disk."""

    def close(self) -> None:
        """Nothing more comes; a manifest that is being written counts."""


class Saving(NoSaving):
    """Decides at which steps, keeps count of parts, completes and deletes; `order` reaches a member."""

    def __init__(
        self,
        shelf: Shelf,
        shape: Shape,
        every: int,
        steps: int,
        begins: Beginning,
        order: Callable[[Member, TakeCheckpoint], None],
        say: Callable[[str], None],
    ) -> None:
        self._shelf, self._shape, self._every, self._steps = shelf, shape, every, steps
        self._begins, self._order, self._say = begins, order, say
        self.newest: CheckpointPath | None = None
        if begins.checkpoint is not None:
            self.newest = CheckpointPath(str(shelf.folder / begins.checkpoint), begins.step)
        self._files = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._attempt: _Attempt | None = None
        self._passed = begins.step
        """The last step whose checkpoint is there or has been given up for good."""
        self._early = _EARLY
        self._is_closed = False
        self._writers: dict[Member, str] = {}
        self._stand = self._next = 0

    @property
    def is_finished(self) -> bool:
        return self._attempt is None and self._passed >= self._steps

    # What happens to the job.

    def look(self) -> None:
        for found in self._shelf.look()[0][:1]:
            self.newest = CheckpointPath(str(self._shelf.folder / found.name), found.manifest.step)
            self._passed = max(self._passed, found.manifest.step)

    def train(self, members: Sequence[Member]) -> None:
        first: dict[int, Member] = {}
        for member in sorted(members):
            first.setdefault(member.worker[1], member)
        self._writers = {
            member: part_name(member.worker[1], member.tp_rank)
            for member in members
            if member.worker == first[member.worker[1]].worker
        }

    def regroup(self, step: int, members: Sequence[Member]) -> None:
        self.train(members)
        self._stand = self._next = step
        attempt = self._attempt
        if attempt is not None and attempt.closing is None:
            gone = any(attempt.waits_for(writer) and writer not in members for writer in attempt.writers)
            # Whoever stood at its step, or before it, may make that step again.
            if gone or step <= attempt.step:
                self._attempt = None
        if self._attempt is None and (due := self._due(step)) is not None:
            self._begin(due)

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        attempt = self._attempt
        if attempt is None or attempt.step < self._stand or not attempt.waits_for(member):
            return None
        return CheckpointOrder(attempt.step, attempt.name)

    def progress(self, step: int) -> None:
        self._next = step
        if self._attempt is None and (due := self._due(step + self._early)) is not None:
            self._begin(due)
            for member in self._writers:
                if (asked := self.asked_of(member)) is not None:
                    self._order(member, TakeCheckpoint(*asked))

    def lose(self, member: Member) -> None:
        if self._attempt is not None and self._attempt.waits_for(member):
            self._attempt = None

    # What writers say.

    def hear(self, member: Member, message: CheckpointReply) -> None:
        attempt = self._attempt
        if attempt is None or message.name != attempt.name or not attempt.waits_for(member):
            return
        match message:
            case CheckpointFailed(_, why):
                self._give_up(f"no checkpoint of step {attempt.step}: {why}")
            case CheckpointMissed():
                self._early = min(2 * self._early, _EARLIEST)
                self._give_up("")
            case CheckpointWritten(_, crc32, seed):
                attempt.parts[attempt.writers[member]] = crc32
                if len(attempt.parts) == len(self._shape.parts):
                    manifest = self._manifest(attempt, seed)
                    attempt.closing = self._files.submit(self._shelf.complete, attempt.name, manifest)

    def poll(self) -> None:
        attempt = self._attempt
        if attempt is None or attempt.closing is None or not attempt.closing.done():
            return
        if (error := attempt.closing.exception()) is not None:
            self._give_up(f"no checkpoint of step {attempt.step}: {error}")
            return
        self.newest = CheckpointPath(str(self._shelf.folder / attempt.name), attempt.step)
        self._files.submit(self._shelf.prune, attempt.name)
        self._attempt, self._passed = None, attempt.step
        self._say(f"checkpoint of step {attempt.step}: {self.newest.path}")
        self.progress(self._next)

    def close(self) -> None:
        self._is_closed = True
        if self._attempt is not None and self._attempt.closing is not None:
            wait([self._attempt.closing], _CLOSE_SECONDS)
            self.poll()
        self._files.shutdown(wait=False)

    # Inside.

    def _due(self, least: int) -> int | None:
        """The next step to take one at; the last step of the run always is one."""
        if self._passed >= self._steps or self._is_closed:
            return None
        least = max(least, self._passed + 1)
        return min(-(-least // self._every) * self._every, self._steps)

    def _begin(self, step: int) -> None:
        try:
            self._attempt = _Attempt(step, self._shelf.begin(step), dict(self._writers))
        except OSError as error:
            self._passed = step
            self._say(f"no checkpoint of step {step}: {error}")

    def _give_up(self, words: str) -> None:
        assert self._attempt is not None
        self._passed = max(self._passed, self._attempt.step)
        self._attempt = None
        if words:
            self._say(words)

    def _manifest(self, attempt: _Attempt, seed: int) -> Manifest:
        items = self._begins.item + (attempt.step - self._begins.step) * self._shape.per_step
        return Manifest(attempt.step, items, seed, self._shape, dict(attempt.parts))
