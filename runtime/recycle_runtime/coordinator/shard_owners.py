"""Owners of shards of optimizer state: who has which, and when there are fewer than there should be.

Needs no torch.
"""

from collections.abc import Callable, Collection, Mapping

from recycle_runtime.coordinator.events import Tell
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.plan.shard_moves import HeldShards
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import ShardOwners


class ShardOwnership(Participant):
    """Of each chunk the worker that speaks for its stage says when owners are missing, and when they are not
    any more."""

    memory = (
        Memory(
            "shards that lack owners",
            said=(ShardOwners,),
            lost="it is for the user; workers make new owners by themselves",
        ),
    )

    def __init__(self, nodes: Callable[[], Mapping[Worker, str]]) -> None:
        self.nodes = nodes
        """Node of each worker."""

    @classmethod
    def open(cls, asked: Asked, job: View) -> "ShardOwnership":
        return cls(asked.nodes)

    def hears(self) -> Hears:
        return {ShardOwners: self._hear}

    def held(self) -> dict[Worker, HeldShards] | None:
        """By worker; None as long as some are on their way, or ranks of a worker own different ones."""
        found: dict[Worker, HeldShards] = {}
        for member in self.job.roster.active():
            here = self.job.roster.entries[member].shard_sizes
            if here is None or found.setdefault(member.worker, here).keys() != here.keys():
                return None
        return found

    def can_spare(self, workers: Collection[Worker]) -> bool:
        """True if every shard that these own has another owner."""
        if (held := self.held()) is None:
            return False
        kept = {place for worker, here in held.items() if worker not in workers for place in here}
        return all(held.get(worker, {}).keys() <= kept for worker in workers)

    def _hear(self, member: Member, said: ShardOwners) -> list[Tell]:
        if not self.job.is_current(member, said.generation):
            return []
        return [Tell(_words(said))]


def _words(said: ShardOwners) -> str:
    what = f"chunk {said.chunk}: "
    if said.lacking:
        return (
            f"{what}{said.lacking} of {said.shards} shards of optimizer state have fewer than "
            f"{said.owners} owners until they are copied"
        )
    return f"{what}all shards have {said.owners} owners again, after {said.seconds:.1f} s"
