"""Worker processes and the coordinator, about steps: what each was made of, and what became of it. No
torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.protocol.codec import Natural

ROUTER = "router "
"""First word about a router, which the name of its layer follows."""


class NotFinite(NamedTuple):
    """Numbers of a worker's own that are infinite or none."""

    what: str
    """`data`, `forward`, `loss` or `backward`; or `router` and the name of a mixture of experts."""
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
    """Gradients of the parameters of a chunk in a step."""

    chunk: Natural
    trained: Natural
    """Parameters that an optimizer has."""
    without: Natural
    """Those of them that had no gradient, on no worker that holds the chunk."""
    names: tuple[str, ...]
    """Of some of these."""
    gives_back: bool
    """Its inputs got a gradient: where none did, no chunk before it is trained."""
    buffers: tuple[str, ...] = ()
    """Some that its forwards have changed and may read, of which every worker has its own."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of my stage: said by one worker of each stage before the first step."""

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
    """Reach of the gradients of my chunks: said by one worker of each stage after the first step of a
    generation."""

    step: Natural
    chunks: tuple[ChunkGradients, ...]


@dataclass(frozen=True, slots=True)
class LossShare:
    """I am about to make this step, and add this to its loss."""

    step: Natural
    loss: float | None
    rate: float | None = None
    """The learning rate of the step: of the first group of the last chunk."""
    corrections: Natural = 0
    """Steps that a late validation has corrected so far, the same for all workers. What was said with
    another number is void: the step before was clipped or left out since, and this one is run again."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """I have made this step."""

    step: Natural
    loss: float | None
    seconds: float
    repeated: Natural
    """Times that it was run again because of a late validation."""
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
    choices: Natural = 0
    """Of experts, in forwards here, by mixtures with a capacity."""
    dropped: Natural = 0
    """Of these, those for which there was no room."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A verdict on a step, now that the norm of the whole model is known."""

    step: Natural
    norm: float | None
    """Of all gradients before clipping; None if not computed, NaN if not finite."""
    is_skipped: bool
    not_finite: tuple[NotFinite, ...] = ()
    """If it was skipped: what here was not finite, in the order in which it was computed."""


OF_SHARD = "shard "
"""Fields with names that begin like this are those of a shard, which only its owners have."""


@dataclass(frozen=True, slots=True)
class PeerDigest:
    """This is what my peers must have too, after so many steps."""

    generation: Natural
    step: Natural
    fields: Mapping[str, str]
    """By the name of a parameter or another field: see `execution.digest`."""


@dataclass(frozen=True, slots=True)
class ShardOwners:
    """So many shards of a chunk's optimizer state have fewer owners than they should; none any more."""

    generation: Natural
    chunk: Natural
    shards: Natural
    """Of all its layers."""
    owners: Natural
    """That each should have."""
    lacking: Natural
    seconds: float
    """For which some have lacked one."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Say again what you said of steps from this one on, and what became of the one before it."""

    step: Natural


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
    choices: Natural = 0
    """Of experts, by mixtures with a capacity; of all workers."""
    dropped: Natural = 0
    """Of these, those for which there was no room."""

    @property
    def loss_or_nan(self) -> float:
        """For whoever computes with it: NaN if it is not known."""
        return math.nan if self.loss is None else self.loss


@dataclass(frozen=True, slots=True)
class StepSettled:
    """A verdict on a step: known one step later, or at a boundary."""

    step: Natural
    norm: float | None
    """Of all gradients before clipping; None if not known, NaN if not finite."""
    is_skipped: bool


StepReport = Parameters | FirstGradients | LossShare | StepDone | Settled | PeerDigest | ShardOwners
SaidAgain = LossShare | StepDone | Settled
"""Messages about the last steps that a worker process keeps, to say them again when `Recall` asks for it."""
MOST_SAID_AGAIN = 4096
"""Messages; older ones are forgotten."""
