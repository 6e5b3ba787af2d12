"""Options: techniques and slow workers; how a job is loaded, and what to say when there is no plan."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from recycle_compiler.cli.values import TECHNIQUES, slow_workers_value, technique_names
from recycle_compiler.frontend import LoadedJob, load_job
from recycle_compiler.frontend.load import parse_for_format
from recycle_compiler.frontend.syntax import Block
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.state import with_techniques as with_other
from recycle_compiler.ir.units import plural
from recycle_compiler.planner.compile import NoPlanError
from recycle_compiler.planner.start import NoStartError, started
from recycle_compiler.scheduling.budget import Guard
from recycle_runtime.cli.output import NO_PLAN, Output, UserError, check_target, refuse_overwriting
from recycle_runtime.cli.parser import Arguments


def add_techniques_argument(parser: Arguments) -> None:
    """Other techniques than those of the job."""
    parser.add_argument(
        "--techniques",
        type=technique_names,
        metavar="LIST",
        help=f"any of {','.join(TECHNIQUES)}, or none (default: the job's)",
    )


def add_slow_argument(parser: Arguments) -> None:
    """Workers that are slower than their peers."""
    parser.add_argument(
        "--slow",
        type=slow_workers_value,
        default=(),
        metavar="P:S=X,P:S=X",
        help="workers whose ops take X times as long",
    )


def load_for(path: str, out: str | None) -> LoadedJob:
    """The job in a file; refuses an output that would overwrite what the job is read from."""
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


def with_chosen_techniques(job: JobSpec, names: tuple[str, ...] | None) -> JobSpec:
    """The job with other techniques switched on, where the command line says so."""
    if names is None:
        return job
    if job.slots and "adaptive" not in names:
        raise UserError(f"{job.name}: workers that share experts need the technique `adaptive`")
    return with_other(job, Techniques(*(name in names for name in TECHNIQUES)))


def start_of(job: JobSpec, output: Output, guard: Guard | None = None) -> JobSpec:
    """The job in the grid that it starts in, where it leaves that to the compiler."""
    if not job.is_free:
        return job
    with planning(job):
        found = started(job, guard)
    each = " each" if found.stages > 1 else ""
    vacant = f", {found.vacant} of these {found.workers} places vacant" if found.vacant else ""
    output.say(
        f"{job.name} starts on {plural(found.stages, 'stage')} of {plural(found.pipelines, 'worker')}{each}"
        f"{vacant}"
    )
    if unused := job.free_workers - found.present:
        output.say(f"{plural(unused, 'worker')} of {job.free_workers} would not make it faster: not used")
    return found


@contextmanager
def planning(job: JobSpec) -> Generator[None]:
    """Around any planning: that no plan exists is for the user to hear, in one sentence."""
    try:
        yield
    except (NoPlanError, NoStartError) as error:
        raise UserError(f"no plan for {job.name}: {error}", NO_PLAN) from error
