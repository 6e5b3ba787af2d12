"""Copies of every stage's state in the memory of nodes: when they are made, who holds them, which one counts.

    keeping   the first peer of each stage copies its state into the memory of its own node, all at one step
    giving    and sends it to a worker of another stage on another node, if there is one
    complete  from now on this is the copy that counts; the one before it gives its memory to the next

One copy is under way at a time. Whatever changes the group gives it up, and the next one is begun. The memory
belongs to nodes, so a copy outlives the processes that made it. Needs no torch.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, copy_name, is_copy
from recycle_runtime.checkpoint.manifest import CheckpointShape
from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.coordinator.events import Note, Order, Send, Tell
from recycle_runtime.coordinator.journal import FILE, Field, Journal, Lines
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, NewGeneration, Participant, View
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.plan.recut import size_text
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.neighbour_copies import (
    CopyFailed,
    CopyHeld,
    CopyKept,
    CopyMissed,
    CopyReply,
    GiveCopy,
    HoldCopy,
    KeepCopy,
)
from recycle_runtime.protocol.messages.steps import StepRow

_EARLY = 2
"""Steps after the last that is known to be made by all: no worker should be there yet."""
_EARLIEST = 64
_LATE = 4
"""Copies that are due, and steps for each, without a complete one before that is reported."""
_STEPS_FOR_ONE = 4
_SLOTS = 2
_SCRIPT_STEPS = 2
"""Steps after which a script has said what it has kept before, if it ever does."""
_COST = "cost"
"""Key under which the cost of copies is reported once."""


class CompleteCopy(NamedTuple):
    """A copy of all stages at one step."""

    name: str
    step: int
    item: int
    """The number of the first micro-batch that these steps have not used."""
    slot: int
    memories: Mapping[str, tuple[str, ...]]
    """By shard: the nodes that have it, by the number of their memory."""
    script: ScriptState | None = None
    """Of a job with scripts: what they keep."""

    @property
    def begins(self) -> Beginning:
        """Start of a job that resumes from this copy."""
        words = f"resuming with step {self.step} from copies in the memory of nodes"
        return Beginning(self.name, self.step, self.item, words=words)

    def missing(self, memories: Collection[str]) -> list[str]:
        """Shards that none of these nodes has."""
        return sorted(
            shard for shard, found in self.memories.items() if not any(each in memories for each in found)
        )


def newest_copy(lines: Lines) -> CompleteCopy | None:
    """The copy that counts, as a journal has it; of a job that goes on from one, that one."""
    found: list[CompleteCopy] = lines.values("copied")
    return found[-1] if found else None


def script_state(
    begins: Beginning, checkpoints: str | None, copied: CompleteCopy | None
) -> ScriptState | None:
    """State that scripts kept where a run begins, in a checkpoint of this folder or in a copy."""
    if begins.checkpoint is None:
        return None
    if is_copy(begins.checkpoint):
        return None if copied is None or copied.name != begins.checkpoint else copied.script
    return None if checkpoints is None else ScriptState.read(Path(checkpoints) / begins.checkpoint)


def prepare_copies(folder: Path, copied: CompleteCopy | None) -> None:
    """A folder for a job that goes on, perhaps from a copy in memory; there as a whole or not at all."""
    aside = folder.with_name(f"{folder.name}.aside")
    aside.mkdir(exist_ok=True)
    if copied is not None:
        journal = Journal(aside / FILE)
        journal.write(copied=copied)
        journal.close()
    aside.rename(folder)


class CopyGroup(NamedTuple):
    """Members that train."""

    generation: int
    members: Sequence[Member]
    """Those that have state: joiners do not."""
    stages: Mapping[Worker, int]
    nodes: Mapping[Worker, str]
    once: Collection[int] | None = None
    """Stages that have every layer once, where groups of pipelines have all of them; None: all stages."""
    has_shards: bool = False
    """Optimizer state is in shards: no worker holds all of its stage."""

    def writers(self) -> dict[Member, int]:
        """One process for every rank of every stage, or all where each has shards, with its stage."""
        first: dict[int, Worker] = {}
        for member in sorted(self.members):
            if self.once is None or self.stages[member.worker] in self.once:
                first.setdefault(self.stages[member.worker], member.worker)
        return {
            member: self.stages[member.worker]
            for member in sorted(self.members)
            if member.worker in first.values() or self.has_shards
        }

    def holders(self, writers: Collection[Member]) -> dict[Member, Member]:
        """Holder of each writer's copy: a worker of another stage on another node, each for one."""
        found: dict[Member, Member] = {}
        for writer in sorted(writers):
            free = [member for member in self.members if member not in found.values()]
            if (holder := self._holder(writer, free)) is not None:
                found[writer] = holder
        return found

    def _holder(self, writer: Member, free: Sequence[Member]) -> Member | None:
        stage, node = self.stages[writer.worker], self.nodes.get(writer.worker)
        count = max(self.stages.values()) + 1
        others = [
            member
            for member in free
            if member.tp_rank == writer.tp_rank
            and self.stages[member.worker] != stage
            and self.nodes.get(member.worker) != node
        ]
        return min(
            others, key=lambda member: ((self.stages[member.worker] - stage) % count, member), default=None
        )


@dataclass(slots=True)
class _Attempt:
    step: int
    name: str
    slot: int
    writers: dict[Member, int]
    kept: dict[Member, CopyKept] = field(default_factory=dict[Member, CopyKept])
    holders: dict[Member, Member] = field(default_factory=dict[Member, Member])
    """By writer: who holds its shards too."""
    held: dict[Member, CopyHeld] = field(default_factory=dict[Member, CopyHeld])
    """By holder."""
    is_stored: bool = False
    """True if all of it is where it should be."""
    script: ScriptState | None = None


class NeighbourCopies(Participant):
    """Decides when; keeps count of what is where."""

    memory = (
        Memory(
            "copies in memory",
            said=(CopyKept, CopyHeld, CopyMissed, CopyFailed),
            journal={"copied": Field(CompleteCopy)},
            lost="one under way is given up, and the next one is made",
        ),
    )

    def __init__(
        self,
        every: int,
        shape: CheckpointShape,
        steps: int,
        begins: Beginning,
        run: int,
        scripts: Scripts | None = None,
        nodes: Callable[[], Mapping[Worker, str]] = dict,
    ) -> None:
        """`run` tells copies apart that are made before and after the job has gone on from one; `scripts` are
        those of a job that has some; `nodes` says where workers are."""
        self._every, self._shape, self._steps, self._begins, self._run = every, shape, steps, begins, run
        self._scripts, self._nodes = scripts, nodes
        self._generation = 0
        self.newest: CompleteCopy | None = None
        """The one that counts."""
        self._attempt: _Attempt | None = None
        self._attempts = 0
        self._early = _EARLY
        self._passed = begins.step
        self._told: set[str] = set()
        self._why = "it takes long"
        """Reason why the last copy was given up, in words."""
        self._is_late_told = False

    @classmethod
    def open(cls, asked: Asked, job: View) -> "NeighbourCopies | None":
        if not asked.copies or asked.shape is None:
            return None
        scripts = job.find(Scripts) if asked.has_scripts else None
        made = cls(asked.copies, asked.shape, asked.steps, asked.begins, asked.run, scripts, asked.nodes)
        # It may be all that is known to a job that goes on from a copy.
        made.recall(asked.journal)
        return made

    def hears(self) -> Hears:
        kinds = (CopyKept, CopyHeld, CopyMissed, CopyFailed)
        return dict.fromkeys(kinds, lambda member, said: self.hear(member, said, self._group()))

    def recall(self, lines: Lines) -> None:
        if (newest := newest_copy(lines)) is not None:
            self.newest, self._passed = newest, max(self._passed, newest.step)
            self._told.add(_COST)

    def go_on(self, new: NewGeneration) -> None:
        self._generation = new.number

    def leave(self) -> None:
        if self._attempt is not None:
            self._why = "the group changed before one was complete"
        self._attempt, self._early = None, _EARLY

    def generation(self, new: NewGeneration) -> tuple[()]:
        self.leave()
        self._generation = new.number
        return ()

    def started(self, new: NewGeneration) -> list[Order]:
        # What is ordered before the workers are told to begin is forgotten by them. Nobody can have made the
        # first step yet.
        return self._begin_if_due(new.step, has_begun=False)

    def miss(self, member: Member) -> None:
        self.leave()

    def progress(self, rows: Sequence[StepRow]) -> list[Order]:
        made, orders, scripts = rows[-1].step + 1, list[Order](), self._scripts
        step = self.waits_for_scripts
        state = None if step is None or scripts is None else scripts.state_before(step)
        # What became of the last step is known one step later.
        if step is not None and state is not None and (state.settled or made > step + 1):
            orders += self.hear_scripts(state)
        elif step is not None and made > step + _SCRIPT_STEPS:
            # They were asked too late.
            self.leave()
        return [*orders, *self.late(made), *self._begin_if_due(made)]

    def _begin_if_due(self, made: int, *, has_begun: bool = True) -> list[Order]:
        step = self.due(made, has_begun=has_begun)
        if step is None:
            return []
        kept = [] if self._scripts is None else self._scripts.want_kept(step)
        return [*self.begin(step, self._group()), *kept]

    def late(self, step: int) -> Iterator[Tell]:
        """Once, as long as it lasts: that none could be completed for many steps."""
        if step - self._passed > _LATE * (self._every + _STEPS_FOR_ONE) and not self._is_late_told:
            self._is_late_told = True
            yield Tell(
                f"no copy in memory since step {self._passed}, {step - self._passed} steps ago: {self._why}; "
                "if all workers of a stage failed now, the job would go on from there"
            )

    def _group(self) -> CopyGroup:
        entries, cells = self.job.roster.entries, self.job.cells
        stages = {
            member.worker: stage for member in entries if (stage := cells.stage(member.worker)) is not None
        }
        members = [
            member
            for member, entry in entries.items()
            if entry.is_active and not entry.is_joining and member.worker in stages
        ]
        return CopyGroup(
            self._generation, members, stages, self._nodes(), cells.book.once, cells.book.has_shards
        )

    def usable(
        self, memories: Collection[str], checkpoint: CheckpointPath | None, *, is_bad: bool
    ) -> tuple[CompleteCopy | None, str]:
        """One that every stage can go on from; or why there is none, in words that end a sentence.

        `memories` are those of live nodes. `is_bad`: workers could not begin with the copy.
        """
        newest = self.newest
        if newest is None:
            return None, "; no copy in memory is complete yet"
        if is_bad:
            return None, "; the copy in memory cannot be used"
        if missing := newest.missing(memories):
            return None, f"; of the copy in memory the node that had {missing[0]} is gone"
        if checkpoint is not None and checkpoint.step > newest.step:
            return None, f"; the copy in memory is older, of step {newest.step}"
        return newest, ""

    def due(self, step: int, *, has_begun: bool = True) -> int | None:
        """All steps before this one have been made by all; the step to make a copy at, if one is due. Before
        all have begun with a generation, nobody can have made its first step."""
        if self._attempt is not None:
            return None
        # One that is late is made as soon as it can be, and not when the one after it is due.
        due = max(step + (self._early if has_begun else 1), (self._passed // self._every + 1) * self._every)
        return due if due < self._steps else None

    def begin(self, step: int, group: CopyGroup) -> list[Send]:
        """A copy at this step."""
        name = copy_name(step, self._run, self._attempts)
        slot = 0 if self.newest is None else (self.newest.slot + 1) % _SLOTS
        self._attempts += 1
        self._attempt = _Attempt(step, name, slot, group.writers())
        keeps = () if self.newest is None else (self.newest.name,)
        return [Send(writer, KeepCopy(step, name, slot, keeps)) for writer in self._attempt.writers]

    @property
    def waits_for_scripts(self) -> int | None:
        """The step before which it has to be known what the scripts keep."""
        attempt = self._attempt
        return None if attempt is None or self._scripts is None or attempt.script else attempt.step

    def hear_scripts(self, state: ScriptState) -> list[Note | Tell]:
        """Add the state that scripts keep, at the step of the copy under way."""
        attempt = self._attempt
        if attempt is None:
            return []
        attempt.script = state
        return list(self._complete(attempt)) if attempt.is_stored else []

    def hear(self, member: Member, message: CopyReply, group: CopyGroup) -> list[Order]:
        """Handle a worker's reply about the copy under way."""
        attempt = self._attempt
        if attempt is None or message.name != attempt.name:
            return []
        match message:
            case CopyFailed(_, why):
                self._attempt, self._why = None, why
                # The same may come again, and each costs a pause.
                self._early = max(self._early, self._every)
                return list(self._once(f"no copy of step {attempt.step} in memory: {why}", why))
            case CopyMissed():
                self._attempt, self._why = None, "workers had passed its step when they were asked"
                self._early = min(2 * self._early, _EARLIEST)
                return []
            case CopyKept():
                attempt.kept[member] = message
                return (
                    list(self._pass_on(attempt, group))
                    if attempt.kept.keys() >= attempt.writers.keys()
                    else []
                )
            case CopyHeld():
                attempt.held[member] = message
                done = attempt.held.keys() >= set(attempt.holders.values())
                return list(self._stored(attempt)) if done else []

    # Inside.

    def _pass_on(self, attempt: _Attempt, group: CopyGroup) -> Iterator[Order]:
        """Every stage has been copied."""
        shards = [shard for kept in attempt.kept.values() for shard in kept.shards]
        if not self._shape.with_shards(shards).is_made_of(shards):
            self._attempt = None
            yield from self._once(
                "no copy in memory: the workers' shards are not those of a whole model", "shards"
            )
            return
        attempt.holders = group.holders(attempt.writers)
        if not attempt.holders:
            yield from self._stored(attempt)
            return
        about = (group.generation, attempt.name, attempt.slot)
        for writer, holder in attempt.holders.items():
            yield Send(writer, GiveCopy(*about, holder.worker))
            yield Send(holder, HoldCopy(*about, writer.worker, attempt.kept[writer].size))

    def _stored(self, attempt: _Attempt) -> Iterator[Note | Tell]:
        attempt.is_stored = True
        if attempt.script is not None or self._scripts is None:
            yield from self._complete(attempt)

    def _complete(self, attempt: _Attempt) -> Iterator[Note | Tell]:
        memories: dict[str, tuple[str, ...]] = {}
        for writer, kept in attempt.kept.items():
            held = attempt.held.get(attempt.holders[writer]) if writer in attempt.holders else None
            places = (
                (kept.memory,) if held is None or held.memory == kept.memory else (kept.memory, held.memory)
            )
            memories |= dict.fromkeys(kept.shards, places)
        begins = self._begins
        item = begins.item + (attempt.step - begins.step) * self._shape.per_step
        self.newest = CompleteCopy(attempt.name, attempt.step, item, attempt.slot, memories, attempt.script)
        self._attempt, self._passed = None, attempt.step
        self._early = max(self._early // 2, _EARLY)
        self._why, self._is_late_told = "it takes long", False
        yield from self._once(_cost(attempt), _COST)
        yield Note({"copied": self.newest})

    def _once(self, text: str, kind: str) -> Iterator[Tell]:
        if kind not in self._told:
            self._told.add(kind)
            yield Tell(text)


def _cost(attempt: _Attempt) -> str:
    """Cost of copies in size and time, reported with the first one."""
    kept, held = attempt.kept.values(), attempt.held.values()
    size = max(each.size for each in kept)
    pause, seconds = max(each.pause for each in kept), max(each.seconds for each in kept)
    words = (
        f"copy of step {attempt.step} in memory: at most {size_text(size)} a stage, two of them kept; "
        f"training paused for {pause:.3f} s, {seconds:.3f} s beside it"
    )
    if not held:
        return f"{words}; all workers of a stage may fail, but not their node with them"
    sent = max(each.seconds for each in held)
    pairs = ", ".join(
        f"{worker_text(writer.worker)} on {worker_text(holder.worker)}'s"
        for writer, holder in attempt.holders.items()
        if writer.tp_rank == 0
    )
    return f"{words}, {sent:.3f} s to send it; held on other nodes too: that of {pairs}"
