"""The participants of a job, and the table of what outlives its coordinator.

Whoever adds a participant adds it here, and nowhere else. Standard library only.
"""

from recycle_runtime.coordinator.checkpoints import Checkpoints
from recycle_runtime.coordinator.last_save import LastSaving
from recycle_runtime.coordinator.model_parameters import ModelParameters
from recycle_runtime.coordinator.neighbour_copies import NeighbourCopies
from recycle_runtime.coordinator.participant import Asked, Participant, View
from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.coordinator.saves import Saves
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.coordinator.step_rows import StepRows

PARTICIPANTS: tuple[type[Participant], ...] = (
    StepRows,
    SkippedSteps,
    PeerDigests,
    ModelParameters,
    Scripts,
    NeighbourCopies,
    Checkpoints,
    Saves,
    LastSaving,
)
"""In the order in which they are told what happens to the job."""


def open_participants(asked: Asked, job: View) -> list[Participant]:
    """Those that are asked for."""
    for kind in PARTICIPANTS:
        if (made := kind.open(asked, job)) is not None:
            made.job = job
            job.participants.append(made)
    return job.participants
