"""The compiler from Python: compile a job, read a bundle, look at its plans.

    import recycle_compiler as recyclec

    bundle = recyclec.compile("figure3.job")          # or recyclec.read("figure3.plan")
    bundle.save("figure3.plan")                       # what `recycle-run` takes
    plan = bundle[1]                                  # the fastest one with one failed worker
    plan.period, plan.gap                             # in the unit of the job; a share
    plan                                              # in a notebook: a picture
    for instruction in plan.stream((0, 1)):           # of worker 0:1
        print(instruction)

What is wrong with a job raises `CompileError`, whose text has file, line, column and a hint; a file that is
no bundle raises `BundleError`; a job without a plan raises `NoPlanError`.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.frontend import LoadedJob, load_job, parse_job_text
from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import in_unit
from recycle_compiler.planner.choice import plan_cuts
from recycle_compiler.planner.compile import compile_job
from recycle_compiler.planner.recut import can_recut
from recycle_compiler.planner.start import started
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.verifier.report import Violation
from recycle_compiler.verifier.verify import verify_bundle
from recycle_compiler.viz.document import document
from recycle_compiler.viz.grid import schedule_grid
from recycle_compiler.viz.picture import WIDTH, Theme, picture
from recycle_compiler.viz.plan_page import PageSide, document_of, plan_page
from recycle_runtime.files import read_bounded, write_whole
from recycle_runtime.plan.bundle import LARGEST_FILE, Bundle
from recycle_runtime.plan.isa import Instruction

_COLUMNS = 180
"""Of a plan as text."""


def load(path: str | os.PathLike[str]) -> LoadedJob:
    """The job in a file."""
    return load_job(Path(path))


def parse(text: str, name: str = "<text>") -> LoadedJob:
    """The job in a text; `name` stands for the file in messages."""
    return LoadedJob(parse_job_text(text, name), text, name)


def compile(
    job: str | os.PathLike[str] | LoadedJob,
    *,
    failures: int | None = None,
    processes: int | None = None,
    recut: bool = True,
) -> "CompiledBundle":
    """Plans for 0 to `failures` failed workers (default: the job's tolerance), as `recyclec compile` does.

    A job is the path of a file, or what `load` and `parse` return. `processes`, one per core by default,
    changes no plan. `recut=False` leaves out plans under other cuts and in groups of pipelines.
    """
    loaded = job if isinstance(job, LoadedJob) else load(job)
    guard = Guard(loaded.spec.solver.time_limit_ns)
    spec = started(loaded.spec, guard)
    workers = processes or os.cpu_count() or 1
    recut = recut and can_recut(spec)
    plans = compile_job(spec, failures=failures, processes=workers, recut=recut, guard=guard)
    recuts: list[Sequence[Streams]] = []
    if recut:
        found = plan_cuts(spec, dict(enumerate(plans, spec.vacant)), workers, guard)
        plans = found.own(plans)
        recuts += found.plans
    return CompiledBundle(bundle_bytes(source=loaded.source, plans=plans, recuts=recuts))


def read(path: str | os.PathLike[str]) -> "CompiledBundle":
    """The bundle in a file."""
    return CompiledBundle(read_bounded(Path(path), LARGEST_FILE))


class CompiledBundle:
    """The plans of a job, one for every number of failures."""

    def __init__(self, data: bytes) -> None:
        """`data` is the content of a bundle file."""
        self._data = data
        self.bundle = Bundle.parse(data)
        """As the runtime reads it."""
        self.job: JobSpec = read_job(self.bundle)

    def __len__(self) -> int:
        """Numbers of failures that it has plans for, none included."""
        return len(self.bundle.plans)

    def __iter__(self) -> Iterator["Plan"]:
        return (self[failures] for failures in range(len(self)))

    def __getitem__(self, failures: int) -> "Plan":
        """The fastest plan with so many failed workers, under whichever cut."""
        own = self.own(failures)
        number = self.bundle.fastest_recut(own.streams.job.present - failures, groups=True)
        if number is None or self.bundle.recuts[number].plans[0].period >= own.streams.claims.period:
            return own
        return Plan(self.bundle.recuts[number], 0, read_streams(self.bundle.recuts[number], 0))

    def own(self, failures: int) -> "Plan":
        """The plan under the cut that the job starts with."""
        if not 0 <= failures < len(self):
            raise IndexError(f"no plan for {failures} failures: the bundle has 0 to {len(self) - 1}")
        return Plan(self.bundle, failures, read_streams(self.bundle, failures))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it, whole or not at all."""
        write_whole(Path(path), self._data)

    def verify(self) -> list[Violation]:
        """Violations in the bundle, found by code that the planner does not use; none, if all is well."""
        return list(verify_bundle(self.bundle))

    def __repr__(self) -> str:
        return f"<plans of {self.job.name} for 0 to {len(self) - 1} failures>"


@dataclass(frozen=True, eq=False)
class Plan:
    """One plan; a picture in a notebook."""

    bundle: Bundle
    number: int
    """Of the plan in its bundle."""
    streams: Streams

    @property
    def job(self) -> JobSpec:
        """The job, or what it becomes under the cut of the plan."""
        return self.streams.job

    @property
    def failed(self) -> tuple[tuple[int, int], ...]:
        """Workers without a stream, as (pipeline, stage)."""
        return tuple((worker.pipeline, worker.stage) for worker in self.streams.failed)

    @property
    def workers(self) -> tuple[tuple[int, int], ...]:
        """Workers with a stream."""
        return self.bundle.workers(self.number)

    @property
    def period(self) -> int | float:
        """From one step to the next, in the unit of the job."""
        return in_unit(self.job, self.streams.claims.period)

    @property
    def bound(self) -> int | float:
        """No plan for these failures and this cut is faster."""
        return in_unit(self.job, self.streams.claims.lower_bound)

    @property
    def gap(self) -> float:
        """Distance of the period from its bound, as a share of the bound."""
        return self.streams.claims.gap

    @cached_property
    def schedule(self) -> Schedule:
        """Schedule with the start of each op."""
        return replay(self.streams)

    def stream(self, worker: tuple[int, int]) -> tuple[Instruction, ...]:
        """Instructions of a worker, (pipeline, stage), in a step; KeyError if it has no stream."""
        if worker not in self.workers:
            raise KeyError(f"worker {worker[0]}:{worker[1]} has no stream in this plan")
        return self.bundle.stream(self.number, worker)

    def text(self, width: int = _COLUMNS) -> str:
        """As `recyclec show` prints it."""
        return schedule_grid(self.schedule, width)

    def svg(self, *, width: int = WIDTH, memory: bool = False, theme: Theme = "auto") -> str:
        """As `recyclec show --format svg` draws it."""
        return picture(self.schedule, width=width, memory=memory, theme=theme)

    def json(self) -> str:
        """As `recyclec show --format json` prints it."""
        return document(self.schedule)

    def html(self) -> str:
        """As a page of its own, to look around in."""
        return plan_page(self.job.name, [PageSide(self.job.name, (document_of(self.schedule),))])

    def _repr_svg_(self) -> str:
        return self.svg(theme="light")

    def __repr__(self) -> str:
        return f"<plan of {self.job.name}: {len(self.failed)} failed, period {self.period}>"
