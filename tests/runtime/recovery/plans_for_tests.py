"""Plans without streams, for whoever only chooses between them."""

from collections.abc import Collection
from typing import NamedTuple, cast

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle


class FakePlan(NamedTuple):
    failed: tuple[Worker, ...]
    period: int


class FakeBundle:
    """As much of a bundle as the plan book looks at; more failures take longer."""

    def __init__(
        self,
        stages: int,
        pipelines: int,
        failures: Collection[Collection[Worker]],
        cut: tuple[int, ...] = (),
        recuts: tuple[Bundle, ...] = (),
    ) -> None:
        self.stages, self.pipelines, self.job_text = stages, pipelines, "job"
        self.microbatches = 720_720 // pipelines
        self.cut, self.recuts, self.owners, self.slots = cut, recuts, 0, 0
        self.chunk_stages = tuple(range(stages))
        self.groups: tuple[tuple[int, ...], ...] = ()
        self.holders = tuple((stage,) for stage in range(stages))
        self.plans = [FakePlan(tuple(failed), 100 + len(failed)) for failed in failures]

    def workers(self, plan: int) -> tuple[Worker, ...]:
        grid = [(pipeline, stage) for stage in range(self.stages) for pipeline in range(self.pipelines)]
        return tuple(worker for worker in grid if worker not in self.plans[plan].failed)

    def held(self, stage: int) -> tuple[int, ...]:
        return (stage,)

    def job_line(self, name: str) -> tuple[str, ...]:
        return ()


def fake_bundle(
    stages: int,
    pipelines: int,
    failures: Collection[Collection[Worker]],
    cut: tuple[int, ...] = (),
    recuts: tuple[Bundle, ...] = (),
) -> Bundle:
    return cast(Bundle, FakeBundle(stages, pipelines, failures, cut, recuts))


def fewest(stages: int, pipelines: int) -> list[Worker]:
    """All but one worker of every stage."""
    return [(pipeline, stage) for stage in range(stages) for pipeline in range(1, pipelines)]


CUTS = ((2, 2), (1, 3), (4,), (1, 1, 2))


def bundle_with_cuts(pipelines: int) -> Bundle:
    """Two stages of the first of `CUTS`, and plans of the others for as many workers."""
    recuts = tuple(_recut(cut, 2 * pipelines) for cut in CUTS[1:])
    return fake_bundle(2, pipelines, [[], fewest(2, pipelines)], CUTS[0], recuts)


def _recut(cut: tuple[int, ...], workers: int) -> Bundle:
    """Plans for another cut: with all workers that it has room for, and with all but two of each stage."""
    pipelines = max(2, workers // len(cut))
    failed = [(pipeline, stage) for stage in range(len(cut)) for pipeline in range(2, pipelines)]
    failures = [[], failed, fewest(len(cut), pipelines)]
    return fake_bundle(len(cut), pipelines, failures, cut)
