"""The participants of a job.

A new participant is added here, and to the table of what outlives a coordinator in docs/protocol.md. Needs no
torch.
"""

from collections.abc import Iterable
from typing import Any

from recycle_runtime.coordinator.checkpoints import Checkpoints
from recycle_runtime.coordinator.last_save import LastSaving
from recycle_runtime.coordinator.layer_moves import LayerMoves
from recycle_runtime.coordinator.model_parameters import ModelParameters
from recycle_runtime.coordinator.neighbour_copies import NeighbourCopies
from recycle_runtime.coordinator.participant import Asked, Participant, View
from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.coordinator.saves import Saves
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.coordinator.shard_owners import ShardOwnership
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.coordinator.step_rows import StepRows

PARTICIPANTS: tuple[type[Participant], ...] = (
    StepRows,
    SkippedSteps,
    PeerDigests,
    ShardOwnership,
    ModelParameters,
    Scripts,
    NeighbourCopies,
    Checkpoints,
    Saves,
    LastSaving,
    LayerMoves,
)
"""In the order in which they are told what happens to the job."""


def not_asked_for(opened: Iterable[Participant]) -> list[type[Any]]:
    """Messages for others: processes may answer what a coordinator with other options has told them."""
    here = {type(one) for one in opened}
    absent = (kind for kind in PARTICIPANTS if kind not in here)
    return [said for kind in absent for memory in kind.memory for said in memory.said]


def open_participants(asked: Asked, job: View) -> list[Participant]:
    """Those that are asked for."""
    for kind in PARTICIPANTS:
        if (made := kind.open(asked, job)) is not None:
            made.job = job
            job.participants.append(made)
    return job.participants
