"""The job language: text in, JobSpec out, every mistake with its place."""

from recycle_compiler.frontend.format import format_job
from recycle_compiler.frontend.load import LoadedJob, load_job, parse_job_text, read_source
from recycle_compiler.frontend.resolve import most_failures

__all__ = ["LoadedJob", "format_job", "load_job", "most_failures", "parse_job_text", "read_source"]
