"""The user's scripts and the coordinator, through the worker processes that they run in. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.members import GridWorker
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled


@dataclass(frozen=True, slots=True)
class ScriptSteps:
    """My script wants so many steps in all."""

    call: Natural
    """Number of the script's loop, from 0."""
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
    stays: bool = True
    """False for files that are read and deleted at once."""


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
    """The state that a script keeps, as it is before this step and after the one before it."""

    step: Natural
    data: bytes | None
    """Nothing where the script keeps nothing; None if it is too late to tell."""


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
    """A save before this step is complete, or this is why it is not."""

    step: Natural
    number: Natural
    path: str
    error: str | None


@dataclass(frozen=True, slots=True)
class LoopBegins:
    """The step at which a loop of the scripts has begun; None: none of them has come so far."""

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
