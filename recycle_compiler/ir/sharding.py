"""The optimizer's state shared out over the workers that hold a chunk.

The state of a chunk is cut into as many shards as workers hold it in the beginning, and each shard is with
several of them, its owners. Owners sum the gradients of their shards and step them; then all holders get the
new weights. When holders fail, others become owners in their place, so each then steps and keeps more:

    8 holders, 2 owners     each owns 2 of 8 shards
    6 of them are left      each owns up to 3 of 8

Its text is lines of exact integers within the text of a job: `owners 2`, `shards 8 8`, `gather 20 20`,
`step 40 40`, `state 900 900`, and `absent` and `lost` where they are not 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PER_CHUNK = ("shards", "gather", "step", "state", "lost")
LINES = frozenset(("owners", *PER_CHUNK, "absent"))
"""Of the text of a job."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Tuples have one value per chunk, but for `absent`."""

    owners: int
    """Workers that own each shard; all of them, where fewer are left."""
    shards: tuple[int, ...]
    """As many as workers hold the chunk while none has failed."""
    gather: tuple[int, ...]
    """Ticks that the new weights take to all that hold the chunk."""
    step: tuple[int, ...]
    """Ticks of a step of all shards."""
    state: tuple[int, ...]
    """Memory of a worker that all shards take: the state, what undoes a step, gradients kept with it."""
    lost: tuple[int, ...]
    """Holders that have failed where the times and capacities of the job are those of its plan."""
    absent: tuple[int, ...]
    """Per stage: cells of the grid that no worker was ever in."""

    def owned(self, chunk: int, lost: int) -> int:
        """Most shards that a holder owns, when so many have failed."""
        shards = self.shards[chunk]
        return min(shards, -(-self.owners * shards // max(1, shards - lost)))

    def step_time(self, chunk: int, lost: int) -> int:
        return -(-self.step[chunk] * self.owned(chunk, lost) // self.shards[chunk])

    def kept(self, chunk: int, lost: int) -> int:
        """Memory that the shards of one holder take."""
        return -(-self.state[chunk] * self.owned(chunk, lost) // self.shards[chunk])

    def lost_with(self, holders: Sequence[tuple[int, ...]], failed: Sequence[int]) -> tuple[int, ...]:
        """Per chunk: how many of those that held it have failed, with so many failed on each stage."""
        gone = [max(0, count - absent) for count, absent in zip(failed, self.absent, strict=True)]
        return tuple(sum(gone[stage] for stage in stages) for stages in holders)

    def verify(self, chunks: int, stages: int) -> Iterator[str]:
        """Yield every broken invariant."""
        if self.owners < 1:
            yield f"owners must be at least 1, got {self.owners}"
        for name in (*PER_CHUNK, "absent"):
            values: tuple[int, ...] = getattr(self, name)
            expected = stages if name == "absent" else chunks
            least = int(name == "shards")
            if len(values) != expected or any(value < least for value in values):
                yield f"{name} needs {expected} values of at least {least}, got {values}"


def shares_of(values: tuple[int, ...], owners: int, workers: int) -> tuple[int, ...]:
    """Part of each of so many workers in what they share out; all of it, where all are to own it."""
    owned = min(owners, workers)
    return tuple(-(-value * owned // workers) for value in values)


def print_sharding(sharding: Sharding) -> list[str]:
    """The lines of the text."""
    lines = [f"owners {sharding.owners}"]
    for name in (*PER_CHUNK, "absent"):
        values: tuple[int, ...] = getattr(sharding, name)
        if any(values) or name not in ("lost", "absent"):
            lines.append(" ".join((name, *map(str, values))))
    return lines


def parse_sharding(fields: Mapping[str, list[str]], stages: int) -> Sharding:
    """Read what `print_sharding` wrote, by first words of lines; KeyError or ValueError if it is none."""
    (owners,) = fields["owners"]
    columns = {
        name: tuple(int(word) for word in fields[name]) for name in ("shards", "gather", "step", "state")
    }
    lost = tuple(int(word) for word in fields.get("lost", ())) or (0,) * len(columns["shards"])
    absent = tuple(int(word) for word in fields.get("absent", ())) or (0,) * stages
    return Sharding(int(owners), lost=lost, absent=absent, **columns)
