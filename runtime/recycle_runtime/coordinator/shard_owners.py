"""Shards of optimizer state that have fewer owners than they should, and for how long: told as it happens.

Needs no torch.
"""

from recycle_runtime.coordinator.events import Tell
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import ShardOwners


class ShardOwnership(Participant):
    """Of each chunk the worker that speaks for its stage says when owners are missing, and when they are not
    any more."""

    memory = (
        Memory(
            "owners of shards",
            said=(ShardOwners,),
            lost="workers know who owns what, and say it anew when a generation begins",
        ),
    )

    @classmethod
    def open(cls, asked: Asked, job: View) -> "ShardOwnership":
        return cls()

    def hears(self) -> Hears:
        return {ShardOwners: self._hear}

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
