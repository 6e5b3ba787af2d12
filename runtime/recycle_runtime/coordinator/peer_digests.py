"""Comparison of peers: what each says of its state after a step, compared as it comes in."""

from collections.abc import Mapping
from typing import NamedTuple

from recycle_runtime.coordinator.events import GivenUp
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import OF_SHARD, PeerDigest

_SHOWN = 6
"""Fields that are named in a sentence."""
_LONGEST = 40
"""Characters of a value that are reported; the rest is cut off."""


class _Place(NamedTuple):
    """Place where states must be the same."""

    generation: int
    step: int
    stage: int | None
    tp_rank: int


class PeerDigests(Participant):
    """The last step that each stage has spoken of."""

    memory = (
        Memory(
            "digests of peers", said=(PeerDigest,), lost="peers that differ differ at the next comparison too"
        ),
    )

    @classmethod
    def open(cls, asked: Asked, job: View) -> "PeerDigests":
        return cls()

    def hears(self) -> Hears:
        return {PeerDigest: self._hear}

    def _hear(self, member: Member, said: PeerDigest) -> list[GivenUp]:
        """Peers that differ train different models: no step from here on would mean anything."""
        if not self.job.is_current(member, said.generation):
            return []
        difference = self.differs(member, self.job.cells.stage(member.worker), said)
        return [] if difference is None else [GivenUp(difference)]

    def __init__(self) -> None:
        self._first: dict[_Place, tuple[Worker, Mapping[str, str]]] = {}
        """First worker to report on each place, and the digests that all of its peers must report."""
        self._shards: dict[_Place, dict[str, tuple[Worker, str]]] = {}
        """Of what only owners of a shard say, who has said it first."""

    def differs(self, member: Member, stage: int | None, said: PeerDigest) -> str | None:
        """Difference between a worker and a peer that has reported on the same step, if any."""
        place = _Place(said.generation, said.step, stage, member.tp_rank)
        common = {name: value for name, value in said.fields.items() if not name.startswith(OF_SHARD)}
        first = self._first.get(place)
        if first is None:
            self._first = {
                other: kept
                for other, kept in self._first.items()
                if other[2:] != place[2:] or other[:2] > place[:2]
            }
            self._shards = {other: kept for other, kept in self._shards.items() if other in self._first}
            first = self._first[place] = member.worker, common
        worker, fields = first
        names = [name for name in fields if common.get(name) != fields[name]]
        names += [name for name in common if name not in fields]
        if not names:
            known = self._shards.setdefault(place, {})
            for name in sorted(said.fields.keys() - common.keys()):
                worker, value = known.setdefault(name, (member.worker, said.fields[name]))
                if value != said.fields[name]:
                    names, fields = [name], {name: value}
                    break
        if not names or worker == member.worker:
            return None
        shown = [_shown(name, fields.get(name), said.fields.get(name)) for name in names[:_SHOWN]]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return (
            f"{worker_text(worker)} and {worker_text(member.worker)} are peers and differ after "
            f"{said.step} steps, in {', '.join(shown)}{more}; {_hint(said.step)}"
        )


def _hint(step: int) -> str:
    if step == 0:
        return (
            "what a model is built with must be the same in all processes: the clock, process ids, the order "
            "of a set and generators without a seed are not; nor may a forward change a parameter in place, "
            "as an Embedding with max_norm does"
        )
    return "what moves with steps belongs into schedule(optimizer) or moves_with_steps(module, optimizer)"


def _shown(name: str, one: str | None, other: str | None) -> str:
    """Numbers are reported, sums of tensors are not."""
    values = [value[:_LONGEST] for value in (one, other) if value is not None and not value.startswith("#")]
    return f"{name} ({values[0]}, {values[1]})" if len(values) == 2 else name
