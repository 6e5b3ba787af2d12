"""Check that the streams of a generation, as its workers tell, are the work of a step.

Needs no torch.
"""

from collections.abc import Iterable

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.work import Share, chunks_amiss
from recycle_runtime.protocol.messages.generations import WorkShare
from recycle_runtime.protocol.messages.members import Member


class GroupStart:
    """Processes that have not begun with the generation. One of each worker says what it will do; there is a
    verdict once all have."""

    def __init__(self) -> None:
        self.missing: set[Member] = set()
        """Processes that have not begun."""
        self._silent: set[Member] = set()
        self._shares: list[Share] = []

    def begin(self, members: Iterable[Member], bundle: Bundle, plan: str) -> None:
        """With a plan of this bundle."""
        self.missing = set(members)
        self._silent = {member for member in self.missing if member.tp_rank == 0}
        self._shares, self._bundle, self._plan = [], bundle, plan

    def hear(self, member: Member, said: tuple[WorkShare, ...] | None) -> str | None:
        """A process has begun: why the plan must not be trained with, once the last has said what it does."""
        self.missing.discard(member)
        if said is None or member not in self._silent:
            return None
        self._silent.discard(member)
        self._shares += [Share(*each) for each in said]
        return None if self._silent else self._mistake()

    def _mistake(self) -> str | None:
        bundle = self._bundle
        amiss = chunks_amiss(self._shares, len(bundle.chunk_stages), bundle.pipelines * bundle.microbatches)
        if not amiss:
            return None
        return (
            f"the plan {self._plan} of the bundle does not run every micro-batch once on chunk {amiss[0]}: "
            "it would train something else; recyclec verify says more"
        )
