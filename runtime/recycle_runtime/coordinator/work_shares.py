"""Check that the streams of a generation, as its workers tell, are the work of a step.

Needs no torch.
"""

from collections.abc import Iterable

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.work import Share, chunks_amiss
from recycle_runtime.protocol.messages.generations import WorkShare
from recycle_runtime.protocol.messages.members import Member


class WorkShares:
    """One process of each worker speaks, as it begins; there is a verdict once all have."""

    def __init__(self) -> None:
        self._missing: set[Member] = set()
        self._shares: list[Share] = []

    def begin(self, members: Iterable[Member]) -> None:
        """With a generation."""
        self._missing = {member for member in members if member.tp_rank == 0}
        self._shares = []

    def hear(self, member: Member, said: tuple[WorkShare, ...] | None) -> bool:
        """True if this was the last that was missing."""
        if said is None or member not in self._missing:
            return False
        self._missing.discard(member)
        self._shares += [Share(*each) for each in said]
        return not self._missing

    def mistake(self, bundle: Bundle, plan: str) -> str | None:
        """Why the plan under way must not be trained with."""
        amiss = chunks_amiss(self._shares, len(bundle.chunk_stages), bundle.pipelines * bundle.microbatches)
        if not amiss:
            return None
        return (
            f"the plan {plan} of the bundle does not run every micro-batch once on chunk {amiss[0]}: it "
            "would train something else; recyclec verify says more"
        )
