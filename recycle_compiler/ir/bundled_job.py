"""The job that a bundle holds."""

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.job_text import TextError, parse_job
from recycle_runtime.plan.bundle import Bundle, BundleError


def read_job(bundle: Bundle) -> JobSpec:
    """The job that the bundle was made for, with every number resolved."""
    try:
        job = parse_job(bundle.job_text.splitlines())
    except TextError as cause:
        raise BundleError(f"damaged: its job cannot be read: {cause}") from cause
    shape = (bundle.stages, bundle.pipelines, bundle.tensor, bundle.microbatches, bundle.chunk_stages)
    if (job.stages, job.pipelines, job.tensor, job.microbatches, job.chunk_stages) != shape:
        raise BundleError("damaged: its job and its index do not have the same shape")
    return job
