"""The participants of a job.

A new participant is added here, and to the table of what outlives a coordinator in docs/protocol.md. Needs no
torch.
"""

from collections.abc import Collection, Iterator
from typing import Any

from recycle_runtime.coordinator.checkpoints import Checkpoints
from recycle_runtime.coordinator.last_save import LastSaving
from recycle_runtime.coordinator.layer_moves import LayerMoves
from recycle_runtime.coordinator.model_parameters import ModelParameters
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, NeighbourCopies
from recycle_runtime.coordinator.participant import Asked, Participant, View
from recycle_runtime.coordinator.peer_digests import PeerDigests
from recycle_runtime.coordinator.saves import Saves
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.coordinator.shard_owners import ShardOwnership
from recycle_runtime.coordinator.skipped_steps import SkippedSteps
from recycle_runtime.coordinator.step_rows import StepRows
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath

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
"""Participants in the order in which they get the events of the job."""


class Participants:
    """Those that are asked for, and by name those that every job has, or that are waited for at its end."""

    def __init__(self, asked: Asked, job: View) -> None:
        self._all = job.participants
        for kind in PARTICIPANTS:
            if (made := kind.open(asked, job)) is not None:
                made.job = job
                self._all.append(made)
        self.rows = job.get(StepRows)
        self.skipped = job.get(SkippedSteps)
        self.shards = job.get(ShardOwnership)
        self.scripts = job.get(Scripts)
        self.last_save = job.get(LastSaving)
        self.layer_moves = job.get(LayerMoves)
        self.checkpoints = job.find(Checkpoints)
        self._copies = job.find(NeighbourCopies)

    def __iter__(self) -> Iterator[Participant]:
        return iter(self._all)

    def not_asked_for(self) -> list[type[Any]]:
        """Messages for others: processes may answer orders of a coordinator with other options."""
        absent = set(PARTICIPANTS).difference(map(type, self._all))
        return [said for kind in absent for memory in kind.memory for said in memory.said]

    @property
    def newest_checkpoint(self) -> CheckpointPath | None:
        return None if self.checkpoints is None else self.checkpoints.newest

    @property
    def failure(self) -> str | None:
        """A checkpoint could not be written, and none since."""
        return None if self.checkpoints is None else self.checkpoints.failure

    def usable_copy(self, memories: Collection[str], *, is_bad: bool) -> tuple[CompleteCopy | None, str]:
        """The copy in memory that the job can go on from; or why there is none, if copies are made."""
        if self._copies is None:
            return None, ""
        return self._copies.usable(memories, self.newest_checkpoint, is_bad=is_bad)

    def end_with(self, steps: int) -> int:
        """The run has so many steps, and all of them are made."""
        for one in self._all:
            one.end_with(steps)
        return steps

    def stop(self) -> None:
        """Nothing more is begun."""
        for one in self._all:
            one.stop()
