"""Participants: parts of a job that live beside its generations, each in a file of its own.

A participant owns the messages of workers that are meant for it, its fields of the journal, and its way back
after the coordinator was killed. The state machine tells every participant what happens to the job, and adds
what it answers to its own orders. `participants` has the list of all. Needs no torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from recycle_runtime.checkpoint.checkpoint_folder import Beginning
from recycle_runtime.checkpoint.manifest import CheckpointShape, Origin
from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.coordinator.cells import Cells
from recycle_runtime.coordinator.events import Answer, Event
from recycle_runtime.coordinator.file_thread import FileThread, RealFileThread
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.checkpoints import CheckpointOrder
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

Answers = Iterable[Answer]
Hears = Mapping[type[Any], Callable[[Member, Any], Answers]]
Follows = Mapping[type[Any], Callable[[Any], Answers]]
Does = Mapping[type[Any], Callable[[Any], Iterable[Event] | None]]
Kind = TypeVar("Kind", bound="Participant")


class Memory(NamedTuple):
    """The way in which something that workers say, or that follows from it, outlives the coordinator."""

    what: str
    said: tuple[type[object], ...] = ()
    """Messages of workers."""
    journal: Mapping[str, Field] = MappingProxyType({})
    """Fields of lines."""
    again: str = ""
    """Occasion on which workers say it again, if they do."""
    lost: str = ""
    """Reason why it need not be known any more, where it is neither written down nor said again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Demands on participants, and things that they work with."""

    steps: int
    has_scripts: bool = False
    begins: Beginning = field(default_factory=Beginning)
    journal: Lines = field(default_factory=lambda: Lines(""))
    """As it was when this coordinator started."""
    script: ScriptState | None = None
    """State that scripts kept where the run begins."""
    is_under_way: bool = False
    """True if a coordinator before this one has begun with the run, or the run goes on from a copy."""
    max_skipped: int | None = None
    """None: as many as usual."""
    shape: CheckpointShape | None = None
    """Of the model; None: nothing is written to disk or kept in memory."""
    origin: Origin | None = None
    checkpoints: str | None = None
    """The folder for them; None: none are taken."""
    every: int = 100
    saves: Path | None = None
    """The folder for what scripts save for a moment only."""
    copies: int = 0
    """Steps from one copy in memory to the next; 0: none are made."""
    run: int = 0
    """Times that the job may still go on by itself: tells copies of different runs apart."""
    nodes: Callable[[], Mapping[Worker, str]] = dict
    """Names of the nodes that workers run on."""
    file_thread: Callable[[str], FileThread] = RealFileThread


@dataclass(frozen=True, slots=True)
class View:
    """The job as its participants see it: to be read."""

    roster: Roster
    cells: Cells
    is_current: Callable[[Member, int], bool]
    """True if a process speaks about the generation that runs."""
    now: Callable[[], float]
    """Time of the event under way."""
    participants: list["Participant"] = field(default_factory=list["Participant"])

    def find(self, kind: type[Kind]) -> Kind | None:
        """None if it was not asked for."""
        return next((one for one in self.participants if isinstance(one, kind)), None)

    def get(self, kind: type[Kind]) -> Kind:
        """One that every job has."""
        found = self.find(kind)
        assert found is not None
        return found


class NewGeneration(NamedTuple):
    """A new generation."""

    number: int
    step: int
    """It begins with."""
    members: Sequence[Member]
    """Those that work: they have the state of their stages."""
    with_loss: frozenset[Member]
    """One process of each worker that computes losses."""
    stages: Mapping[Worker, int]
    """Stage of each worker; where groups of pipelines hold all layers, the one of the first group."""
    has_shards: bool = False
    """Optimizer state is in shards: no worker holds all of its stage."""

    def writers(self) -> frozenset[Member]:
        """All ranks of the first worker of each stage, or of all workers."""
        if self.has_shards:
            return frozenset(self.members)
        first: dict[int, Worker] = {}
        for member in sorted(self.members):
            if member.worker in self.stages:
                first.setdefault(self.stages[member.worker], member.worker)
        return frozenset(member for member in self.members if member.worker in first.values())


class Participant(ABC):
    """One that takes no part in anything."""

    memory: ClassVar[tuple[Memory, ...]] = ()
    job: View

    @classmethod
    @abstractmethod
    def open(cls, asked: Asked, job: View) -> "Participant | None":
        """None if it is not asked for."""

    # What it is told, and by whom.

    def hears(self) -> Hears:
        """Messages of workers that are meant for it."""
        return {}

    def follows(self) -> Follows:
        """Events about its files."""
        return {}

    def does(self) -> Does:
        """Orders about its files: what each leads to."""
        return {}

    # After the coordinator was killed.

    def recall(self, lines: Lines) -> None:
        """The coordinator before this one has written this down."""

    def go_on(self, new: NewGeneration) -> None:
        """These train already, and are on their way back."""

    def all_returned(self) -> Answers:
        """They are all back, or known to be gone."""
        return ()

    # What happens to the job.

    def leave(self) -> None:
        """All are asked to leave their group."""

    def generation(self, new: NewGeneration) -> Answers:
        """A generation begins; no orders have been sent yet."""
        return ()

    def started(self, new: NewGeneration) -> Answers:
        """The workers of a generation have been ordered to begin."""
        return ()

    def recovered(self, seconds: float) -> Answers:
        """All of them run in it, so many seconds after the last one was broken off."""
        return ()

    def asked_of(self, member: Member) -> CheckpointOrder | None:
        """The order to write that a process gets when a generation begins, if there is one."""

    def progress(self, rows: Sequence[StepRow]) -> Answers:
        """These steps have been made by all."""
        return ()

    def settle(self, settled: StepSettled) -> Answers:
        """It is known what became of a step."""
        return ()

    def kept(self, step: int, *, is_known: bool) -> Answers:
        """The state that scripts keep before a step is known now, or never will be."""
        return ()

    def drop(self, member: Member) -> None:
        """A process is gone."""

    def miss(self, member: Member) -> None:
        """The connection of a process was broken: it may not have received what was sent."""

    def end_with(self, steps: int) -> None:
        """The run has so many steps, as has just become known; all of them are made."""

    # The end.

    def ends(self) -> Answers:
        """All steps are made, or the job ends without: the last that it has to say, before anybody is sent
        away. Asked once."""
        return ()

    failure: str | None = None
    """An error, for the user when the job ends."""

    @property
    def is_finished(self) -> bool:
        """True if nothing has to be waited for at the end of the run."""
        return True

    def stop(self) -> None:
        """Nothing more is begun; what is being written counts."""

    # Its files.

    def take(self) -> Iterable[Event]:
        """News of them."""
        return ()

    def finish(self) -> Iterable[Event]:
        """The same when the job ends: what is on its way to disk is waited for."""
        return ()

    def close(self) -> None:
        """Let go of them."""

    def sweep(self) -> None:
        """Nobody writes any more: delete what will never be complete."""
