"""Events and orders: input and output of the state machine of a job.

Nothing here does anything. Events go into `StateMachine.handle`, orders come out of it, and the service
carries them out. Needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recycle_runtime.checkpoint.manifest import Manifest
from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.regrouping import Recovery
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import (
    StepRow,
    StepSettled,
)
from recycle_runtime.protocol.messages.wire import FromWorker, ToWorker

# Events.


@dataclass(frozen=True, slots=True)
class Joined:
    """A process is there for the first time, or again after it was given up."""

    member: Member
    has_trained: bool = False
    """True if it holds state from before, which counts for nothing now."""
    asked: int = 0
    """The newest generation that it has heard of, from another coordinator perhaps."""
    ranks: int = 0
    """Processes of its worker, if that has lost tensor-parallel ranks; or 0."""


@dataclass(frozen=True, slots=True)
class Returned:
    """A process has found the restarted coordinator; it stops nowhere without an order."""

    member: Member
    is_training: bool
    """In the generation of the journal."""
    asked: int
    saves: bool = False
    """True if it writes its parameters when the job ends."""


@dataclass(frozen=True, slots=True)
class AllReturned:
    """All processes of the journal are back, or known to have failed."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """The connection of a process broke and is there again; both ends may have missed something."""

    member: Member
    generation: int
    is_training: bool
    asked: int
    """The newest generation that it has heard of, from another coordinator perhaps."""
    saves: bool = False
    """True if it writes its parameters when the job ends."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message from a worker process."""

    member: Member
    message: FromWorker


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker is gone, all its processes with it."""

    worker: Worker
    cause: str
    fault_at: float | None = None
    """Time of the injected fault, if that is known; in seconds of the machine's monotonic clock."""
    reason: str = ""
    """Exception that the worker's own work raised."""


@dataclass(frozen=True, slots=True)
class BeginsAnew:
    """Before the first step: a worker of which some processes have come is restarted, all of it."""

    worker: Worker
    why: str


@dataclass(frozen=True, slots=True)
class WorkerStuck:
    """A worker is gone because its own work did not come to an end."""

    failed: WorkerFailed
    step: int
    why: str
    """Error message if the program is at fault."""


@dataclass(frozen=True, slots=True)
class EndWanted:
    """The user wants the job to end, in order."""

    why: str
    seconds: float
    """Seconds that a last checkpoint may take."""


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Every worker should stop between two steps, for a change."""

    why: str


@dataclass(frozen=True, slots=True)
class MovesWanted:
    """At the next change these workers leave their stages and take the places of failed ones."""

    moves: Mapping[Worker, Worker]


@dataclass(frozen=True, slots=True)
class RecutWanted:
    """Layers should travel, and then every worker should switch to a plan of another layout."""

    move: LayerMove


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The book has a plan that may fit better."""


@dataclass(frozen=True, slots=True)
class PlanningFailed:
    """No new plan can be made; the job goes on with the plans that it has."""

    error: str


@dataclass(frozen=True, slots=True)
class CheckpointNotBegun:
    """The folder of this checkpoint cannot be made."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointClosed:
    """The manifest of this checkpoint is on disk, or cannot be written."""

    name: str
    why: str | None


@dataclass(frozen=True, slots=True)
class SaveBegun:
    """There is a folder for this attempt to save what scripts ask for, or there cannot be one."""

    attempt: int
    path: str
    why: str | None


@dataclass(frozen=True, slots=True)
class SaveClosed:
    """The manifest of this attempt is on disk, or cannot be written."""

    attempt: int
    why: str | None


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The job has to end; None: it has gone well."""

    error: str | None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Now and then, so that what takes too long is noticed."""


Event = (
    Joined
    | Returned
    | AllReturned
    | Reconnected
    | Said
    | WorkerFailed
    | BeginsAnew
    | WorkerStuck
    | EndWanted
    | StopWanted
    | MovesWanted
    | RecutWanted
    | PlanMade
    | PlanningFailed
    | CheckpointNotBegun
    | CheckpointClosed
    | SaveBegun
    | SaveClosed
    | GivenUp
    | TimePassed
)

# Orders.


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a worker process."""

    member: Member
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Fence:
    """Kill a process, so that it cannot come back half alive."""

    member: Member
    why: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A process is another worker from now on."""

    member: Member
    target: Member


@dataclass(frozen=True, slots=True)
class TellRow:
    """A step is complete."""

    row: StepRow


@dataclass(frozen=True, slots=True)
class Note:
    """Write this line into the journal."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TellSettled:
    """The outcome of a step is known."""

    settled: StepSettled


@dataclass(frozen=True, slots=True)
class Tell:
    """A message for the observers of the job."""

    text: str


@dataclass(frozen=True, slots=True)
class BeginGathering:
    """Older generations are over; waiting in one of them is in vain."""

    number: int


@dataclass(frozen=True, slots=True)
class BeginGeneration:
    """A new generation is ordered: write it down before it is sent to any process."""

    number: int
    step: int
    assignment: Assignment
    """Of cells."""
    cells: Mapping[Worker, Worker]
    """From the workers of this generation to their cells."""
    joiners: Mapping[Worker, Worker] = field(default_factory=dict)
    """The same for workers that get their state while those train."""
    fewer: Mapping[Worker, int] = field(default_factory=dict)
    """Processes of those that have lost tensor-parallel ranks."""


@dataclass(frozen=True, slots=True)
class EndMove:
    """Layers do not travel any more: they have arrived, or this is why they are not waited for."""

    why: str | None


@dataclass(frozen=True, slots=True)
class FinishRecovery:
    """Every worker runs in the new generation."""

    recovery: Recovery


@dataclass(frozen=True, slots=True)
class WantPlan:
    """There is no plan for exactly these workers yet."""

    live: tuple[Worker, ...]
    is_needed: bool = False
    """They wait for one."""


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Make its folder."""

    name: str


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """Write its manifest: all shards are on disk."""

    name: str
    manifest: Manifest
    script: ScriptState | None = None
    """Of a job with scripts."""


@dataclass(frozen=True, slots=True)
class DropCheckpoint:
    """Delete what there is of one that will never be complete."""

    name: str


@dataclass(frozen=True, slots=True)
class PruneCheckpoints:
    """Delete those that are older than this one."""

    name: str


@dataclass(frozen=True, slots=True)
class BeginSave:
    """Make a folder for what scripts save."""

    attempt: int
    step: int
    folder: str
    """Of checkpoints; empty for one of the job's own."""


@dataclass(frozen=True, slots=True)
class CompleteSave:
    """Write its manifest: all shards are on disk."""

    attempt: int
    step: int
    path: str
    shards: Mapping[str, int]
    seed: int
    script: ScriptState | None = None


@dataclass(frozen=True, slots=True)
class DropSave:
    """Delete what there is of an attempt that will never be complete."""

    path: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over."""

    error: str | None
    no_plan: bool
    """True if the job ends for lack of a plan."""
    is_lost: bool = False
    """True if the job ends because no live worker has the state of a stage."""


Order = (
    Send
    | Fence
    | Rename
    | TellRow
    | TellSettled
    | Note
    | Tell
    | BeginGathering
    | BeginGeneration
    | EndMove
    | FinishRecovery
    | WantPlan
    | BeginCheckpoint
    | CompleteCheckpoint
    | PruneCheckpoints
    | DropCheckpoint
    | BeginSave
    | CompleteSave
    | DropSave
    | EndJob
)


@dataclass(frozen=True, slots=True)
class ScriptsKeep:
    """The state that scripts keep before a step is known, or never will be."""

    step: int
    is_known: bool


Answer = Order | GivenUp | ScriptsKeep | StopWanted
"""Answers of participants: orders, and news for the state machine alone."""
