"""Who has the state of which stage in memory, so that it shows when nobody has."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from recycle_compiler.fleet.policy import Worker
from recycle_compiler.ir.job import JobSpec


def grid(job: JobSpec) -> frozenset[Worker]:
    """All workers of a job."""
    return frozenset((pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages))


def own_stages_first(
    own: Mapping[Worker, int], others: Collection[Worker], wanted: Sequence[int]
) -> dict[Worker, int]:
    """A stage for everybody, so that each has as many as wanted; as many as can be stay on their own.

    Where more are there than wanted, those left over get none.
    """
    there = Counter(own.values())
    serves = dict(own)
    for stage, count in enumerate(wanted):
        if there[stage] > count:
            # As a rule nobody has to go, so nobody is looked at one by one.
            members = sorted(machine for machine, served in own.items() if served == stage)
            for machine in members[count:]:
                del serves[machine]
    open_stages = (stage for stage, count in enumerate(wanted) for _ in range(count - there[stage]))
    rest = sorted({*own, *others} - serves.keys())
    return serves | dict(zip(rest, open_stages, strict=False))


class Holders:
    """Workers and the stages they have. Who gets another one has its old state until the copies are done."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._serves: dict[Worker, int] = {}
        self._before: dict[Worker, int] = {}
        """What was in memory when the last copies began."""

    def lose(self, lost: Collection[Worker], is_copying: bool) -> None:
        """These are gone; copies that are under way are in vain."""
        self._serves = dict(self._before if is_copying else self._serves)
        for worker in lost:
            self._serves.pop(worker, None)
        self._before = dict(self._serves)

    def forgotten(self, next_too: bool = False) -> bool:
        """Whether nobody has some stage; with `next_too`, everybody has a copy of the following one too."""
        held = set(self._serves.values())
        if next_too:
            held |= {(stage + 1) % self._stages for stage in held}
        return len(held) < self._stages

    def place(self, live: Collection[Worker], wanted: Sequence[int]) -> list[int]:
        """Everybody gets a stage; the stages that somebody has to copy, one entry a copy."""
        placed = own_stages_first(self._serves, live, wanted)
        copied = [stage for _, stage in sorted(placed.items() - self._serves.items())]
        self._before, self._serves = self._serves, placed
        return copied

    def start(self, live: Collection[Worker], wanted: Sequence[int]) -> None:
        """Everybody reads a checkpoint, and so no state in memory counts."""
        self._serves = own_stages_first({worker: worker[1] for worker in live}, (), wanted)
        self._before = dict(self._serves)

    def clear(self) -> None:
        """The job stands still, and must start from a checkpoint."""
        self._serves, self._before = {}, {}
