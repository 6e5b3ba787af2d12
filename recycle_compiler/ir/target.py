"""Target of one plan: a job in one failure state."""

from collections.abc import Iterator
from dataclasses import dataclass

from recycle_compiler.ir.failure import (
    FailureSet,
    failed_per_stage,
    failure_set,
    hosting_pipelines,
    live_pipelines,
    normal_form,
)
from recycle_compiler.ir.job import JobSpec


@dataclass(frozen=True, slots=True)
class Target:
    """The input of planning."""

    job: JobSpec
    failed: FailureSet

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk, the numbers of the workers that may run micro-batches on it."""
        job = self.job
        pipelines = hosting_pipelines(self.failed, job.stages, job.pipelines, job.techniques.adaptive)
        return tuple(
            tuple(stage * job.pipelines + pipeline for stage in stages for pipeline in pipelines[stage])
            for stages in job.holders
        )

    @property
    def live(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk, the numbers of the live workers that hold it."""
        job = self.job
        return tuple(
            tuple(
                stage * job.pipelines + pipeline
                for stage in stages
                for pipeline in live_pipelines(self.failed, stage, job.pipelines)
            )
            for stages in job.holders
        )

    @property
    def normal(self) -> "Target":
        """The representative of all failure sets with as many failures on each stage."""
        counts = failed_per_stage(self.failed, self.job.stages)
        return Target(self.job, normal_form(counts, self.job.pipelines))

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good target yields nothing."""
        yield from self.job.verify()
        if self.failed != failure_set(self.failed):
            yield "failed workers are not sorted or not distinct"
        for worker in self.failed:
            if not (0 <= worker.pipeline < self.job.pipelines and 0 <= worker.stage < self.job.stages):
                yield f"failed worker {worker} is outside the grid"
