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
        self.cut, self.recuts, self.owners = cut, recuts, 0
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
