"""What `compile` and `plan` share: how a job is loaded, and what to say when there is no plan."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from recycle_compiler.cli.output import NO_PLAN, UserError, check_target, refuse_overwriting
from recycle_compiler.frontend import LoadedJob, load_job
from recycle_compiler.frontend.load import parse_for_format
from recycle_compiler.frontend.syntax import Block
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.planner.compile import NoPlanError


def load_for(path: str, out: str | None) -> LoadedJob:
    """The job in a file, when what is planned for it can be written without loss of what it was read from."""
    check_target(out, path)
    loaded = load_job(path)
    if out is not None and Path(out).is_file():
        _keep_profile(out, loaded)
    return loaded


def _keep_profile(out: str, loaded: LoadedJob) -> None:
    folder = Path(loaded.name).parent
    for entry in parse_for_format(loaded.source, loaded.name).braces.entries:
        if isinstance(entry, Block) and entry.file:
            refuse_overwriting(out, str(folder / entry.file.text), "the profile that the job reads")


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
