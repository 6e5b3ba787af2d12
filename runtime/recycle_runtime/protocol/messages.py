"""Everything that the processes of a job say to each other. Standard library only.

Each message is a frozen dataclass; on the wire it is a JSON object whose `type` is the name of its class in
small letters (`AtBoundary` is `at_boundary`). docs/protocol.md shows who says what when.

    worker process -> coordinator    FromWorker      the first one is Join
    coordinator -> worker process    ToWorker
    agent -> coordinator             FromAgent       the first one is AgentJoin
    coordinator -> agent             ToAgent
    observer -> coordinator          FromObserver
    coordinator -> observer          ToObserver      everything that happens in the job
    store request, and its answer    StoreRequest, StoreAnswer, on a connection of their own

Where agents relay, what worker processes and the store say travels inside FromWorkers and ToWorkers.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast, get_args

from recycle_runtime.plan.chrome_trace import Event
from recycle_runtime.protocol.codec import Natural, ProtocolError, Travels, decode, encode

VERSION: Final = 8
"""Of what is said here; both ends of a connection must have the same."""

# Values that messages carry.

GridWorker = tuple[Natural, Natural]
"""A worker, by its place in the job's grid: (pipeline, stage)."""


class Member(NamedTuple):
    """One process of the job: its worker, and which of the worker's tensor-parallel processes it is."""

    worker: GridWorker
    tp_rank: Natural


class Sums(NamedTuple):
    """The two numbers that judge a step: see `optimizer.Totals`."""

    squares: float
    not_finite: float


class Report(NamedTuple):
    """What a worker process holds when it has left its group."""

    applied: Natural | None
    """Steps that its parameters have seen; None: it holds nothing that can be used, such as half of a state
    that it was being sent."""
    is_fresh: bool
    """As built from the seed: good before the first step, and wherever else a peer's state replaces it."""
    settled: Sums | None = None
    """Of the last step whose verdict is known."""
    settled_steps: Natural = 0
    """How many steps there were up to that one."""
    unsettled: Sums | None = None
    """What this process has put into the sums of the last step, if its verdict is open."""
    layers_applied: Natural | None = None
    """Steps that the layers have seen that it was sent for another cut; None: not all of them are here."""


class LayersToMove(NamedTuple):
    """Layers on their way from one worker to another."""

    worker: GridWorker
    """At the other end."""
    first: Natural
    last: Natural
    """The first one beyond them."""


class InjectedFault(NamedTuple):
    """What a worker process is told to do to itself, and before which instruction of which step."""

    kind: str
    step: Natural
    position: int
    """An instruction, or a moment outside the stream: see `testing.timetable`."""


class Copied(NamedTuple):
    """A state that a worker process has received."""

    size: Natural
    """Bytes."""
    seconds: float


class WorkShare(NamedTuple):
    """The micro-batches that a worker runs on a chunk (`plan.work.Share`)."""

    chunk: Natural
    units: Natural
    """A number that stands for them."""


class CheckpointOrder(NamedTuple):
    """A checkpoint to write one's shards of."""

    step: Natural
    name: str


class CheckpointPath(NamedTuple):
    """A complete checkpoint."""

    path: str
    step: Natural


class NotFinite(NamedTuple):
    """Numbers of a worker's own that are infinite or none."""

    what: str
    """`data`, `forward`, `loss` or `backward`."""
    microbatch: Natural
    """Its number in the step."""


class ParameterLook(NamedTuple):
    """A parameter as it is before the first step, in a few words."""

    name: str
    layer: Natural
    shape: tuple[Natural, ...]
    owner: str
    """The class of the module that has it."""
    is_embedding: bool
    numbers: str
    """Some of them, in a few digits; empty where all are the same."""


class ChunkGradients(NamedTuple):
    """What the parameters of a chunk got in a step."""

    chunk: Natural
    trained: Natural
    """Parameters that an optimizer has."""
    without: Natural
    """How many of these had no gradient, on no worker that holds the chunk."""
    names: tuple[str, ...]
    """Of some of these."""
    gives_back: bool
    """Whether what it was given got a gradient: where nothing did, no chunk before it is trained."""
    buffers: tuple[str, ...] = ()
    """Some that its forwards have changed and may read, of which every worker has its own."""


class RunningProcess(NamedTuple):
    """A worker process of an agent's node."""

    member: Member
    pid: Natural


class Passed(NamedTuple):
    """A message that an agent passes on."""

    lines: tuple[Natural, ...]
    """Of the worker processes' connections to the agent, as it has numbered them."""
    message: "Message | None"
    """None: these connections have ended, or are to."""


@dataclass(frozen=True, slots=True)
class Relayed(Travels):
    """Messages in the order in which they were said. They look alike, so of one that is of the same type as
    the one before it only those fields travel that differ."""

    passed: tuple[Passed, ...]

    def to_json(self) -> list[object]:
        found: list[object] = []
        before: dict[str, object] = {}
        for lines, message in self.passed:
            if message is None:
                found.append((lines, None))
                continue
            fields = to_fields(message)
            if fields["type"] == before.get("type"):
                found.append((lines, {key: item for key, item in fields.items() if item != before[key]}))
            else:
                found.append((lines, fields))
            before = fields
        return found

    @classmethod
    def from_json(cls, value: object) -> "Relayed":
        if not isinstance(value, list):
            raise ProtocolError("what is passed on is not an array")
        found: list[Passed] = []
        before: dict[str, object] = {}
        for each in cast("list[object]", value):
            lines, fields = _line_and_fields(each)
            if fields is None:
                found.append(Passed(lines, None))
                continue
            before = fields if "type" in fields else before | fields
            message = from_fields(before)
            if type(message) not in PASSED_ON:
                raise ProtocolError(f"{type(message).__name__} is not for agents to pass on")
            found.append(Passed(lines, message))
        return cls(tuple(found))


def _line_and_fields(value: object) -> tuple[tuple[int, ...], dict[str, object] | None]:
    """One message, as it is passed on."""
    match value:
        case [[*lines], None | {} as fields] if all(type(line) is int and line >= 0 for line in lines):
            return tuple(cast("list[int]", lines)), cast("dict[str, object] | None", fields)
        case _:
            raise ProtocolError("what is passed on is not lines and a message")


# A worker process to the coordinator.


@dataclass(frozen=True, slots=True)
class Join:
    """Here I am: the first message on a connection, and again on each new one."""

    member: Member
    pid: Natural
    """Its number among all processes of the job: see `identity`."""
    generation: Natural
    """The last one that it has trained in; 0: none."""
    asked: Natural
    """The newest one that it has heard of."""
    is_training: bool
    saves: bool = False
    """Whether it writes its parameters when the job ends."""


@dataclass(frozen=True, slots=True)
class LeftGroup:
    """I have left my group for this generation, and hold this."""

    generation: Natural
    report: Report
    program: str = ""
    """The version of Python and a digest of the source that it reads the program from, if it can be read."""
    seed: Natural = 0
    plans: str = ""
    """The digest of the bundle that it was started with."""


@dataclass(frozen=True, slots=True)
class Began:
    """I run in this generation."""

    generation: Natural
    state_bytes: Natural
    """About what a copy of its state takes."""
    copied: Copied | None
    """What it had to receive for that."""
    layer_bytes: tuple[Natural, ...] = ()
    """The same for each of its layers; nothing if its program comes in whole stages."""
    first_layer: Natural = 0
    """The number of the first of them."""
    can_halve: bool | None = None
    """Whether plans that split micro-batches in two are of use: all have the same even number of samples.
    None from a worker that loads none."""
    saves: bool = False
    """Whether it writes its parameters when the job ends."""
    shares: tuple[WorkShare, ...] | None = None
    """The micro-batches that it runs on each chunk. None from tensor-parallel ranks other than the first."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What my stage has to train: said by one worker of each stage before the first step."""

    trained: Natural
    """Parameters that an optimizer has."""
    untrained: Natural
    """Those that require gradients and that no optimizer has."""
    names: tuple[str, ...]
    """Of some of these."""
    looks: tuple[ParameterLook, ...]
    """Of parameters that may be copies of each other, where stages are built one by one."""


@dataclass(frozen=True, slots=True)
class FirstGradients:
    """What the gradients of my chunks reach: said by one worker of each stage after the first step of a
    generation."""

    step: Natural
    chunks: tuple[ChunkGradients, ...]


@dataclass(frozen=True, slots=True)
class LayersArrived:
    """The layers that I was to take are here, and as new as those of the workers that sent them."""

    generation: Natural
    move: Natural
    copied: Copied


@dataclass(frozen=True, slots=True)
class LayersLost:
    """The layers that I was to take will not come."""

    generation: Natural
    move: Natural
    why: str


@dataclass(frozen=True, slots=True)
class LossShare:
    """I am about to make this step, and add this to its loss."""

    step: Natural
    loss: float | None
    rate: float | None = None
    """The learning rate of the step: of the first group of the last chunk."""
    corrections: Natural = 0
    """How many steps a late validation has corrected so far, the same for all workers. What was said with
    another number is void: the step before was clipped or left out since, and this one is run again."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """I have made this step."""

    step: Natural
    loss: float | None
    seconds: float
    repeated: Natural
    """How often it was run again because of a late validation."""
    times: Mapping[str, float]
    """Measured seconds of each kind of op."""
    data_wait: float = 0.0
    """Seconds that it waited for data."""
    samples: Natural = 0
    """That it has loaded."""
    tokens: Natural = 0
    """Of these, if they are whole numbers in rows."""
    rate: float | None = None
    """As in LossShare, which may not have been heard."""
    corrections: Natural = 0
    """As in LossShare."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a step, now that the norm of the whole model is known."""

    step: Natural
    norm: float | None
    """Of all gradients before clipping; None if not computed, NaN if not finite."""
    is_skipped: bool
    not_finite: tuple[NotFinite, ...] = ()
    """If it was skipped: what here was not finite, in the order in which it was computed."""


@dataclass(frozen=True, slots=True)
class Holding:
    """I know where to stop; I am in this step now."""

    request: Natural
    step: Natural


@dataclass(frozen=True, slots=True)
class AtBoundary:
    """I wait before this step."""

    step: Natural


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The state I was sent has arrived: I can work."""

    generation: Natural


@dataclass(frozen=True, slots=True)
class PeerDigest:
    """This is what my peers must have too, after so many steps."""

    generation: Natural
    step: Natural
    fields: Mapping[str, str]
    """By the name of a parameter or another field: see `execution.digest`."""


@dataclass(frozen=True, slots=True)
class GroupBroken:
    """I cannot reach a worker of my group."""

    generation: Natural
    why: str


@dataclass(frozen=True, slots=True)
class Failed:
    """My own work raised an error; I end."""

    step: Natural
    why: str
    is_injected: bool
    is_hopeless: bool
    """Whether it would fail everywhere."""


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """The injected fault that I was given happens now."""

    fault: InjectedFault


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """My shards of this checkpoint are on disk."""

    name: str
    shards: Mapping[str, Natural]
    """The checksum of each one's description."""
    seed: Natural


@dataclass(frozen=True, slots=True)
class CheckpointMissed:
    """I was past the step of this checkpoint when I was asked for it."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """My shards of this checkpoint cannot be written."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class CopyKept:
    """My shards of this copy are in the memory of my node."""

    name: str
    memory: str
    """Of the node: see `node_memory`."""
    shards: tuple[str, ...]
    size: Natural
    """Bytes."""
    pause: float
    """Seconds for which training stood still."""
    seconds: float
    """Seconds that the rest took beside training."""


@dataclass(frozen=True, slots=True)
class CopyHeld:
    """The shards that another worker sent me are in the memory of my node."""

    name: str
    memory: str
    size: Natural
    seconds: float


@dataclass(frozen=True, slots=True)
class CopyMissed:
    """I was past the step of this copy when I was asked for it, or busy with another."""

    name: str


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """What I was asked to do for this copy cannot be done."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """I need the plans with this number."""

    number: Natural


@dataclass(frozen=True, slots=True)
class Trace:
    """What I ran, and when."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses of my host, and those of hosts that do not answer me."""

    here: tuple[str, ...]
    unanswered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScriptSteps:
    """My script wants so many steps in all."""

    call: Natural
    """Which of its loops says so, from 0."""
    steps: Natural
    begins: Natural | None = None
    """Its first step, where the script knows; one that joins does not."""


@dataclass(frozen=True, slots=True)
class LoopRequest:
    """I have joined: where has this loop of the scripts begun, if it has?"""

    call: Natural


@dataclass(frozen=True, slots=True)
class InScript:
    """I wait before this step for my script, which is busy with something else."""

    step: Natural


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """My script has ended, and asks for no step from this one on."""

    step: Natural


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Tell me what this step came to, as soon as it is known."""

    step: Natural


@dataclass(frozen=True, slots=True)
class SettledRequest:
    """My script wants to know what became of this step: StepSettled, once it is known."""

    step: Natural


@dataclass(frozen=True, slots=True)
class EvaluationShare:
    """My part of an evaluation before this step is done, and adds this to the sum of its losses."""

    generation: Natural
    step: Natural
    number: Natural
    """Of the evaluation among those before the same step."""
    items: Natural
    """Micro-batches of the whole evaluation."""
    loss: float


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Tell me the result of an evaluation for which my script waits, if the other workers have made it."""

    step: Natural
    number: Natural


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """My script saves the model before this step, into this folder of checkpoints."""

    step: Natural
    number: Natural
    """Of the save among those before the same step."""
    folder: str
    """Empty for one that the coordinator chooses."""


@dataclass(frozen=True, slots=True)
class SaveShare:
    """My shards of what is being saved are on disk, or cannot be written."""

    path: str
    shards: Mapping[str, Natural]
    """The checksum of each one's description."""
    seed: Natural
    error: str | None


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """Tell me what a script keeps, as it is before this step and after the one before it.

    A worker that joins asks the coordinator, and the coordinator the main worker.
    """

    step: Natural


@dataclass(frozen=True, slots=True)
class KeptState:
    """What a script keeps, as it is before this step and after the one before it."""

    step: Natural
    data: bytes | None
    """Nothing where the script keeps nothing; None if it is too late to tell."""


@dataclass(frozen=True, slots=True)
class Done:
    """I have saved what I should, and end."""

    error: str | None = None
    """Why it could not write what it should."""


# The coordinator to a worker process.


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave your group, and say what you hold: this generation is next."""

    generation: Natural


@dataclass(frozen=True, slots=True)
class Go:
    """A generation begins: your role in its plan, and whose state goes where."""

    generation: Natural
    step: Natural
    """The first one."""
    bundle: Natural
    plan: Natural
    role: GridWorker
    """The worker whose stream it runs."""
    grid: str
    """The roles of all, as `worker_ids.grid_text` writes them."""
    sums: Sums | None
    """Of the step before the first, for those who lack them."""
    copy_from: GridWorker | None
    """Whose state to take before training goes on."""
    copy_to: tuple[GridWorker, ...]
    donor: GridWorker | None
    """Whose state to take while the other workers train."""
    joiners: tuple[GridWorker, ...]
    """Whom to send one's state meanwhile."""
    restore: str | None
    """The checkpoint that every worker reads first."""
    until: Natural
    """The step before which to stop."""
    is_spared: bool
    """Whether injected faults that may wait have to wait."""
    first_step: Natural
    """Where the run began, and the number of its first micro-batch."""
    first_item: Natural
    checkpoint: CheckpointOrder | None
    is_main: bool = False
    """Whether its script is the one that speaks for all."""
    check_peers: Natural = 0
    """Steps from one comparison with peers to the next; 0: never."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop before this step; said again with a later one if a worker had passed it."""

    step: Natural
    request: Natural


@dataclass(frozen=True, slots=True)
class MoveLayers:
    """Give layers to others and take layers from others, while you train."""

    generation: Natural
    move: Natural
    """Its number in the job; a generation may see several, between the same workers."""
    gives: tuple[LayersToMove, ...]
    takes: tuple[LayersToMove, ...]


@dataclass(frozen=True, slots=True)
class DropLayers:
    """The cut stays as it is: forget about layers that were to move."""

    generation: Natural


@dataclass(frozen=True, slots=True)
class Recall:
    """Say again what you said of steps from this one on."""

    step: Natural


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Write your shards of this checkpoint when you stand at this step."""

    step: Natural
    name: str


@dataclass(frozen=True, slots=True)
class KeepCopy:
    """Copy your shards into the memory of your node when you stand at this step."""

    step: Natural
    name: str
    slot: Natural
    """Which of the two places for that; the other one has what is complete."""
    keeps: tuple[str, ...]
    """Copies that are still of use."""


@dataclass(frozen=True, slots=True)
class GiveCopy:
    """Send your shards of this copy to another worker, which holds them too."""

    generation: Natural
    name: str
    slot: Natural
    worker: GridWorker


@dataclass(frozen=True, slots=True)
class HoldCopy:
    """Hold the shards of this copy that another worker sends you."""

    generation: Natural
    name: str
    slot: Natural
    worker: GridWorker
    size: Natural
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Move:
    """From now on you are this worker."""

    worker: GridWorker


@dataclass(frozen=True, slots=True)
class BundleData:
    """The plans you asked for."""

    number: Natural
    data: bytes


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The mean loss of an evaluation before this step."""

    step: Natural
    number: Natural
    loss: float


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Write your shards of what all scripts save before this step."""

    generation: Natural
    step: Natural
    number: Natural
    path: str
    """The folder of the checkpoint."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What was saved before this step is complete, or this is why it is not."""

    step: Natural
    number: Natural
    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class LoopBegins:
    """Where a loop of the scripts has begun; None: none of them has come so far."""

    call: Natural
    step: Natural | None


@dataclass(frozen=True, slots=True)
class OtherEnded:
    """The script of this worker has ended before this step: if yours asks for it, they are not the same."""

    worker: GridWorker
    step: Natural


@dataclass(frozen=True, slots=True)
class OtherEvaluates:
    """The script of this worker waits for an evaluation: if yours goes on without, they are not the same."""

    worker: GridWorker
    step: Natural
    number: Natural


@dataclass(frozen=True, slots=True)
class OtherSaves:
    """The script of this worker waits for a save: if yours goes on without, they are not the same."""

    worker: GridWorker
    step: Natural
    number: Natural


@dataclass(frozen=True, slots=True)
class End:
    """The job is over, or you are not part of it."""

    ok: bool


# An agent and the coordinator.


ENDED_WELL = "ended with status 0"
"""How a worker process ends that has done all that it should."""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """A worker process is gone."""

    member: Member
    pid: Natural
    how: str
    fault_at: Natural
    """When it did to itself what it was told to, in nanoseconds of the machine's monotonic clock; or 0."""
    stuck_in: Natural | None = None
    """The step in which its own work did not come to an end, if that is why."""
    where: str = ""
    """Then: the lines of the program that it was in."""


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """A node has room for so many worker processes; these run there already."""

    name: str
    """Of the agent, so that it is known again when its connection is a new one."""
    processes: Natural
    running: tuple[RunningProcess, ...]
    term: Natural = 0
    """The newest of which it knows; a coordinator of an older one must not lead it."""
    memory: str = ""
    """Of the node: see `node_memory`."""
    relays: bool = False
    """Whether its workers look for a connection at the agent."""
    ended: tuple[ProcessEnded, ...] = ()
    """The last that have ended: what was said of them may not have been heard."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """I live."""


@dataclass(frozen=True, slots=True)
class FromWorkers:
    """What worker processes of my node say."""

    said: Relayed


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start this worker process."""

    member: Member
    faults: tuple[InjectedFault, ...]


@dataclass(frozen=True, slots=True)
class KillProcess:
    """So that it cannot come back half alive."""

    member: Member


@dataclass(frozen=True, slots=True)
class RenameProcess:
    """A process is another worker from now on."""

    member: Member
    to: Member


@dataclass(frozen=True, slots=True)
class UseRelay:
    """Let worker processes of your node speak through you, or no more."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class ToWorkers:
    """Pass this on to worker processes of your node."""

    told: Relayed


@dataclass(frozen=True, slots=True)
class JobEnding:
    """The job ends in order, with a last checkpoint, within so many seconds: stay, whoever asks you to go."""

    seconds: float


@dataclass(frozen=True, slots=True)
class JobOver:
    """End, and all your worker processes."""


# An observer and the coordinator.


@dataclass(frozen=True, slots=True)
class Observe:
    """Tell me everything; rows from this step on that I have missed."""

    next: Natural | None


@dataclass(frozen=True, slots=True)
class StopJob:
    """End the job in order, with a last checkpoint if checkpoints are kept."""

    why: str
    """In a word."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The job has so many steps; the first one that is not complete is this."""

    steps: Natural
    next: Natural


@dataclass(frozen=True, slots=True)
class Starting:
    """What is done before the first step."""

    what: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step of the whole job."""

    step: Natural
    loss: float | None
    """None if a share of it died with a worker; NaN is what training came to."""
    seconds: float
    """Of the worker that took longest."""
    live: Natural
    """Workers."""
    plan: str
    """Failures on each stage, as the plan has them."""
    data_wait: float = 0.0
    """Seconds that the worker waited for data that waited longest."""
    samples: Natural = 0
    """Of all workers; 0 if not known."""
    tokens: Natural = 0
    """The same."""
    learning_rate: float | None = None
    """Of the first group of the last chunk; None if not known."""

    @property
    def loss_or_nan(self) -> float:
        """For whoever computes with it: NaN if it is not known."""
        return math.nan if self.loss is None else self.loss


@dataclass(frozen=True, slots=True)
class StepSettled:
    """What became of a step: known one step later, or at a boundary."""

    step: Natural
    norm: float | None
    """Of all gradients before clipping; None if not known, NaN if not finite."""
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class Generation:
    """A new generation has been ordered."""

    number: Natural
    step: Natural
    plan: str
    workers: tuple[GridWorker, ...]
    standbys: Natural
    """How many of them run no micro-batches."""
    period: Natural
    """As planned, in ticks."""
    roles: tuple[GridWorker, ...] = ()
    """Of each of the workers, in their order: whose stream of the plan it runs."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A change of generation is complete; times in seconds."""

    generation: Natural
    causes: tuple[str, ...]
    step: Natural
    """Where training goes on."""
    undone: Natural
    """How many workers took a step back."""
    repeated: float
    """Of training that is run again."""
    plan: str
    detection: float
    leaving: float
    regroup: float
    total: float


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something has happened."""

    text: str
    period: Natural | None = None
    """Of a plan, if one was made."""
    fault: InjectedFault | None = None


@dataclass(frozen=True, slots=True)
class WorkerTrace:
    """What a worker ran, and when."""

    worker: GridWorker
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over."""

    error: str | None
    no_plan: bool
    """Whether that is why."""
    checkpoint: CheckpointPath | None
    steps: Natural = 0
    """That the job has in all, if it went well."""


# The store that process groups meet at.


@dataclass(frozen=True, slots=True)
class StoreOpen:
    """Requests to the store follow."""


@dataclass(frozen=True, slots=True)
class StoreSet:
    """Keep this value. Not answered: what follows on this connection finds it there."""

    key: str
    value: str
    """Base64, as all values of the store."""


@dataclass(frozen=True, slots=True)
class StoreGet:
    """Answered when the key is there."""

    key: str


@dataclass(frozen=True, slots=True)
class StoreSee:
    """As StoreGet, with all that lies in the same folder beyond the first `known` keys."""

    key: str
    known: Natural


@dataclass(frozen=True, slots=True)
class StoreGather:
    """Answered when all of these keys are there."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """Whether all of these are there."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreAdd:
    """Add to a number; one that is not there is 0."""

    key: str
    value: int


@dataclass(frozen=True, slots=True)
class StoreRemove:
    """Forget this key."""

    key: str


@dataclass(frozen=True, slots=True)
class StoreValue:
    """What was asked for."""

    value: str


@dataclass(frozen=True, slots=True)
class StoreValues:
    """What was asked for, key by key."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Keys and values in the order in which they came; None for one that was removed."""

    entries: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class StoreNumber:
    """A sum; of checks and removals, 1 for yes and 0 for no."""

    value: int


@dataclass(frozen=True, slots=True)
class StoreRefusal:
    """There is no answer, and this is why."""

    why: str


CheckpointReply = CheckpointWritten | CheckpointMissed | CheckpointFailed
CopyReply = CopyKept | CopyHeld | CopyMissed | CopyFailed
ScriptRequest = (
    ScriptSteps
    | LoopRequest
    | InScript
    | ScriptEnded
    | RowRequest
    | SettledRequest
    | EvaluationShare
    | EvaluationRequest
    | SaveRequest
    | SaveShare
    | KeptRequest
    | KeptState
)
ToScript = (
    StepRow
    | StepSettled
    | Evaluated
    | SaveOrder
    | Saved
    | LoopBegins
    | OtherEnded
    | OtherEvaluates
    | OtherSaves
    | KeptRequest
    | KeptState
)
FromWorker = (
    Join
    | LeftGroup
    | Began
    | Parameters
    | FirstGradients
    | LayersArrived
    | LayersLost
    | LossShare
    | StepDone
    | Settled
    | Holding
    | AtBoundary
    | CaughtUp
    | PeerDigest
    | GroupBroken
    | Failed
    | FaultInjected
    | CheckpointWritten
    | CheckpointMissed
    | CheckpointFailed
    | CopyKept
    | CopyHeld
    | CopyMissed
    | CopyFailed
    | BundleRequest
    | Trace
    | Reach
    | ScriptSteps
    | LoopRequest
    | InScript
    | ScriptEnded
    | RowRequest
    | SettledRequest
    | EvaluationShare
    | EvaluationRequest
    | SaveRequest
    | SaveShare
    | KeptRequest
    | KeptState
    | Done
)
ToWorker = (
    Leave
    | Go
    | Hold
    | MoveLayers
    | DropLayers
    | Recall
    | TakeCheckpoint
    | KeepCopy
    | GiveCopy
    | HoldCopy
    | Move
    | BundleData
    | StepRow
    | StepSettled
    | Evaluated
    | SaveOrder
    | Saved
    | LoopBegins
    | OtherEnded
    | OtherEvaluates
    | OtherSaves
    | KeptRequest
    | KeptState
    | End
)
FromAgent = AgentJoin | Heartbeat | ProcessEnded | FromWorkers
ToAgent = StartProcess | KillProcess | RenameProcess | UseRelay | ToWorkers | JobEnding | JobOver
FromObserver = Observe | StopJob
ToObserver = (
    Hello | Starting | StepRow | StepSettled | Generation | Recovered | JobEvent | WorkerTrace | JobEnded
)
StoreRequest = StoreSet | StoreGet | StoreGather | StoreSee | StoreCheck | StoreAdd | StoreRemove
StoreAnswer = StoreValue | StoreValues | StoreFolder | StoreNumber | StoreRefusal
Message = (
    FromWorker
    | ToWorker
    | FromAgent
    | ToAgent
    | FromObserver
    | ToObserver
    | StoreOpen
    | StoreRequest
    | StoreAnswer
)

PASSED_ON: Final = frozenset((*get_args(FromWorker | ToWorker | StoreRequest | StoreAnswer), StoreOpen))
"""What agents relay."""


def type_name(kind: type[object]) -> str:
    """As it stands on the wire."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


KINDS: Final[Mapping[str, type[Message]]] = {type_name(kind): kind for kind in get_args(Message)}
_NAMES: Final[Mapping[type[object], str]] = {kind: name for name, kind in KINDS.items()}


def to_fields(message: Message) -> dict[str, object]:
    """What travels."""
    return {"type": _NAMES[type(message)], **encode(message)}


def from_fields(fields: Mapping[str, object]) -> Message:
    """The message that has arrived; ProtocolError if it is none."""
    name = fields.get("type")
    if not isinstance(name, str) or name not in KINDS:
        raise ProtocolError(f"there is no message of type {str(name)[:40]!r}")
    rest = dict(fields)
    del rest["type"]
    return decode(KINDS[name], rest, name)


Context = TypeVar("Context")
Kind = TypeVar("Kind", bound=Message)


class Handlers(Generic[Context]):
    """Which function handles which message: the one place where that is said. `Context` is who sent it."""

    def __init__(self) -> None:
        self._handlers: dict[type[object], Callable[[Context, Any], None]] = {}

    def on(self, kind: type[Kind], handler: Callable[[Context, Kind], None]) -> None:
        if kind in self._handlers:
            raise ValueError(f"{kind.__name__} is handled already")
        self._handlers[kind] = handler

    def handle(self, context: Context, message: Message) -> None:
        """ProtocolError if this message is not expected here."""
        handler = self._handlers.get(type(message))
        if handler is None:
            raise ProtocolError(f"{_NAMES[type(message)]} is not expected here")
        handler(context, cast(Any, message))
