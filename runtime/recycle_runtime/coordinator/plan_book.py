"""All plans that a running job can use: its bundle, and what was planned since. Standard library only.

A plan for exactly as many losses on each stage fits as it is. Where there is none, one for more losses fits
too: live workers that it has no stream for watch. They take part in sums and steps, so that they stay like
their peers, and compute nothing.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.isa import Instruction, Opcode

_WATCHED = frozenset({Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.VALIDATE})

Counts = tuple[int, ...]


class Assignment(NamedTuple):
    """A plan, and the role that each live worker has in it."""

    bundle: int
    """Which of the book's bundles."""
    plan: int
    roles: dict[Worker, Worker]
    """From a worker's place to the worker whose stream it runs."""
    watching: int
    """How many of them run no micro-batches."""
    period: int
    """As planned, in ticks."""

    @property
    def is_exact(self) -> bool:
        return self.watching == 0


class PlanBook:
    """Bundles of one job; the first is the one that the job was started with."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundles = [bundle]
        self.stages, self.pipelines = bundle.stages, bundle.pipelines

    @property
    def grid(self) -> list[Worker]:
        """All workers that the job could have."""
        return [(pipeline, stage) for stage in range(self.stages) for pipeline in range(self.pipelines)]

    def add(self, bundle: Bundle) -> int:
        """Its number."""
        self.bundles.append(bundle)
        return len(self.bundles) - 1

    def counts(self, live: Collection[Worker]) -> Counts:
        """Losses on each stage."""
        return tuple(
            self.pipelines - sum(place[1] == stage for place in live) for stage in range(self.stages)
        )

    def assign(self, live: Collection[Worker]) -> Assignment | None:
        """The quickest plan that these workers can run; None if none has few enough of them."""
        lost = self.counts(live)
        fitting = [
            (not self._is_exact(number, plan, lost), entry.period, number, plan)
            for number, bundle in enumerate(self.bundles)
            for plan, entry in enumerate(bundle.plans)
            if all(has >= must for has, must in zip(_counts(entry.failed, self.stages), lost, strict=True))
        ]
        if not fitting:
            return None
        _, period, number, plan = min(fitting)
        return self._assign(number, plan, live, period)

    def best_placement(self, failures: int) -> tuple[Counts, int] | None:
        """How the first bundle spreads so many losses over stages, and the period it has then."""
        for entry in self.bundles[0].plans:
            if len(entry.failed) == failures:
                return _counts(entry.failed, self.stages), entry.period
        return None

    def _is_exact(self, number: int, plan: int, lost: Counts) -> bool:
        return _counts(self.bundles[number].plans[plan].failed, self.stages) == lost

    def _assign(self, number: int, plan: int, live: Collection[Worker], period: int) -> Assignment:
        planned = self.bundles[number].workers(plan)
        roles: dict[Worker, Worker] = {}
        watching = 0
        for stage in range(self.stages):
            here = sorted(place for place in live if place[1] == stage)
            working = [role for role in planned if role[1] == stage]
            idle = [(p, stage) for p in range(self.pipelines) if (p, stage) not in working]
            watching += max(0, len(here) - len(working))
            roles.update(zip(here, [*working, *idle], strict=False))
        return Assignment(number, plan, roles, watching, period)


def stream_of(bundle: Bundle, plan: int, role: Worker) -> Sequence[Instruction]:
    """What a role runs; one that the plan counts as failed runs what its peers do together."""
    workers = bundle.workers(plan)
    if role in workers:
        return bundle.stream(plan, role)
    peer = next(worker for worker in workers if worker[1] == role[1])
    return tuple(step for step in bundle.stream(plan, peer) if step.opcode in _WATCHED)


def _counts(failed: Collection[Worker], stages: int) -> Counts:
    return tuple(sum(stage == other for _, stage in failed) for other in range(stages))
