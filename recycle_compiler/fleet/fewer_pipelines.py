"""Other shapes of the same job: fewer pipelines that do the whole batch."""

from dataclasses import replace

from recycle_compiler.ir.job import JobSpec


def on_pipelines(job: JobSpec, pipelines: int) -> JobSpec:
    """The job on so many pipelines: each does its part of the batch, rounded up."""
    each = -(-job.pipelines * job.microbatches // pipelines)
    return replace(job, pipelines=pipelines, microbatches=each, failures=0)
