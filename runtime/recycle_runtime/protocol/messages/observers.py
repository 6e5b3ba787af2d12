"""Observers and the coordinator: everything that happens in the job. No torch."""

from dataclasses import dataclass

from recycle_runtime.plan.chrome_trace import Event
from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.members import GridWorker, InjectedFault
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled


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
    """Something that is done before the first step."""

    what: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A new generation has been ordered."""

    number: Natural
    step: Natural
    plan: str
    workers: tuple[GridWorker, ...]
    standbys: Natural
    """Those of them that run no micro-batches."""
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
    """Step from which training goes on."""
    undone: Natural
    """Workers that took a step back."""
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
    """Instructions that a worker ran, and when."""

    worker: GridWorker
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over."""

    error: str | None
    no_plan: bool
    """That is why."""
    checkpoint: CheckpointPath | None
    steps: Natural = 0
    """That the job has in all, if it went well."""


FromObserver = Observe | StopJob


ToObserver = (
    Hello | Starting | StepRow | StepSettled | Generation | Recovered | JobEvent | WorkerTrace | JobEnded
)
