"""What `compile` and `plan` share: the techniques asked for, and what to say when there is no plan."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from recycle_compiler.commands.output import NO_PLAN, UserError
from recycle_compiler.compiler import NoPlanError
from recycle_compiler.ir.job import JobSpec, Techniques


def with_techniques(job: JobSpec, names: tuple[str, ...] | None) -> JobSpec:
    """The job with other techniques switched on, where the command line says so."""
    if names is None:
        return job
    return replace(
        job, techniques=Techniques(*(name in names for name in ("adaptive", "decouple", "stagger")))
    )


@contextmanager
def planning(job: JobSpec) -> Generator[None]:
    """Around any planning: that no plan exists is for the user to hear, in one sentence."""
    try:
        yield
    except NoPlanError as error:
        raise UserError(f"no plan for {job.name}: {error}", NO_PLAN) from error
