"""Worker processes and the coordinator, about groups: who joins and leaves, what each holds, when the next
generation begins, and when the job ends. No torch."""

from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.plan.chrome_trace import Event
from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.checkpoints import CheckpointOrder
from recycle_runtime.protocol.messages.members import GridWorker, InjectedFault, Member


class Sums(NamedTuple):
    """The two numbers that judge a step: see `optimizer.Totals`."""

    squares: float
    not_finite: float


class LayerShards(NamedTuple):
    """Shards of a layer's optimizer state that a worker process holds."""

    layer: Natural
    shards: Natural
    """Number of all of them."""
    held: tuple[Natural, ...]


class LayerExperts(NamedTuple):
    """Experts of a layer that peers share."""

    layer: Natural | None
    """None where the program gives whole stages: of the stage of the worker."""
    experts: Natural
    """In the mixture that has most of them."""


class HeldState(NamedTuple):
    """The state that a worker process holds when it has left its group."""

    applied: Natural | None
    """Steps that its parameters have seen; None: it holds nothing that can be used, such as half of a state
    that it was being sent."""
    is_fresh: bool
    """As built from the seed: good before the first step, and wherever else a peer's state replaces it."""
    settled: Sums | None = None
    """Of the last step whose verdict is known."""
    settled_steps: Natural = 0
    """Steps up to that one."""
    unsettled: Sums | None = None
    """This process's part of the sums of the last step, if its verdict is open."""
    can_go_forward: bool = False
    """It has the gradients of the next step, summed, and would make it if it knew the norm."""
    shards: tuple[LayerShards, ...] = ()
    """Of each layer, where optimizer state is in shards."""
    layers_applied: Natural | None = None
    """Steps that the layers have seen that it was sent for another cut; None: not all of them are here."""


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
    """It writes its parameters when the job ends."""
    ranks: Natural = 0
    """Number of its worker's processes, if that is fewer than the job's tensor-parallel ranks; or 0."""


@dataclass(frozen=True, slots=True)
class LeftGroup:
    """I have left my group for this generation, and hold this."""

    generation: Natural
    report: HeldState
    program: str = ""
    """The version of Python and a digest of the source that it reads the program from, if it can be read."""
    seed: Natural = 0
    plans: str = ""
    """The digest of the bundle that it was started with."""
    others: tuple[HeldState, ...] = ()
    """The same as `report` of every further rank for which it stands."""
    ranks: tuple[Natural, ...] | None = None
    """With how many tensor-parallel ranks a worker could go on that has lost some; None: not known yet."""
    experts: tuple[LayerExperts, ...] = ()
    """Of each layer that has some; none as long as the process has no layers."""


@dataclass(frozen=True, slots=True)
class Began:
    """I run in this generation."""

    generation: Natural
    state_bytes: Natural
    """About what a copy of its state takes."""
    copied: Copied | None
    """The state that it had to receive for that."""
    layer_bytes: tuple[Natural, ...] = ()
    """The same for each of its layers; nothing if its program comes in whole stages."""
    first_layer: Natural = 0
    """The number of the first of them."""
    can_halve: bool | None = None
    """Plans that split micro-batches in two are of use: all have the same even number of samples.
    None from a worker that loads none."""
    saves: bool = False
    """It writes its parameters when the job ends."""
    shares: tuple[WorkShare, ...] | None = None
    """The micro-batches that it runs on each chunk. None from tensor-parallel ranks other than the first."""


@dataclass(frozen=True, slots=True)
class ShardsHeld:
    """Shards of optimizer state that I hold: said when a generation begins, whenever they change, and once
    after the first step in which none of my stage is on its way to an owner."""

    generation: Natural
    shards: tuple[LayerShards, ...]
    sizes: tuple[tuple[Natural, ...], ...] | None = None
    """Bytes of each of them; None as long as some are on their way."""


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
    """It would fail everywhere."""


@dataclass(frozen=True, slots=True)
class FaultInjected:
    """The injected fault that I was given happens now."""

    fault: InjectedFault


@dataclass(frozen=True, slots=True)
class BundleRequest:
    """I need the plans with this number."""

    number: Natural


@dataclass(frozen=True, slots=True)
class Trace:
    """Instructions that I ran, and when."""

    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    """Addresses of my host, and those of hosts that do not answer me."""

    here: tuple[str, ...]
    unanswered: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """I have saved what I should, and end."""

    error: str | None = None
    """Reason why it could not write what it should."""


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
    """Worker whose state to take before training goes on."""
    copy_to: tuple[GridWorker, ...]
    donor: GridWorker | None
    """Worker whose state to take while the other workers train."""
    joiners: tuple[GridWorker, ...]
    """Whom to send one's state meanwhile."""
    restore: str | None
    """The checkpoint that every worker reads first."""
    until: Natural
    """The step before which to stop."""
    is_spared: bool
    """Injected faults that may wait have to wait."""
    first_step: Natural
    """Step at which the run began; `first_item` is the number of its first micro-batch."""
    first_item: Natural
    checkpoint: CheckpointOrder | None
    is_main: bool = False
    """Its script is the one that speaks for all."""
    check_peers: Natural = 0
    """Steps from one comparison with peers to the next; 0: never."""
    fewer: tuple[tuple[GridWorker, Natural], ...] = ()
    """Those roles whose workers have lost ranks, and how many processes each of them has."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Stop before this step; said again with a later one if a worker had passed it."""

    step: Natural
    request: Natural


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
class End:
    """The job is over, or you are not part of it."""

    ok: bool


FromMember = (
    Join
    | LeftGroup
    | Began
    | ShardsHeld
    | Holding
    | AtBoundary
    | CaughtUp
    | GroupBroken
    | Failed
    | FaultInjected
    | BundleRequest
    | Trace
    | Reach
    | Done
)
ToMember = Leave | Go | Hold | Move | BundleData | End
