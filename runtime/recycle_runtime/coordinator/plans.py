"""Plans of a job besides those of its bundle: made on demand or ahead by a process, kept in files.

Needs no torch.
"""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from recycle_runtime.coordinator.events import PlanMade, PlanningFailed
from recycle_runtime.coordinator.journal import Field, Lines
from recycle_runtime.coordinator.participant import Memory
from recycle_runtime.files import reason, sentence, write_whole
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.on_demand import (
    KilledError,
    OnDemandError,
    Recyclec,
    cut_arguments,
    plan_arguments,
    read_made_plan,
)
from recycle_runtime.plan.plan_book import Fitted, PlanBook
from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.observers import JobEvent

_LOGGER = logging.getLogger(__name__)

FailedWorkers = tuple[Worker, ...]
_MOST_KILLED = 3
"""Times that one request is begun again because somebody, or the lack of memory, has killed the process."""


_Place = tuple[Natural, Natural]
MEMORY = (
    Memory(
        "plans made on demand, and those for certain workers",
        journal={
            "bundle": Field(str),
            "live": Field(tuple[_Place, ...]),
            "slow": Field(tuple[tuple[Natural, Natural, float], ...], needs=("bundle", "live")),
            "unfit": Field(bool),
        },
    ),
    Memory("slow workers on standby", journal={"standby": Field(tuple[_Place, ...])}),
    Memory("bytes of the state of each layer", journal={"layer_bytes": Field(tuple[Natural, ...])}),
)


class Notes(Protocol):
    """Place where it is written down."""

    def write(self, **fields: Any) -> None: ...


class PlanGoneError(ValueError):
    """The job cannot go on without a file, in one sentence."""


class PlanFiles:
    """Worker processes are sent these files when they need a plan."""

    def __init__(self, first: str, book: PlanBook, notes: Notes, folder: Path) -> None:
        """`folder` is where plans are made: they are known by their names in it, wherever it is by then."""
        self._folder = folder
        self.paths = [Path(first)] * len(book.bundles)
        """Of each bundle; plans for other cuts lie in the first one."""
        self._book, self.notes = book, notes
        self.first = book.bundles[0]
        """Bundle that the job was started with."""

    def recall(self, lines: Lines, running: int = 0) -> None:
        """Take over the plans of the coordinator before this one.

        Standbys are cells of the grid of the bundle that runs. A file that cannot be read is left out;
        PlanGoneError if it is that one.
        """
        names, made_for, fitted = _noted(lines)
        first, missing = len(self.paths), set[int]()
        if running >= first + len(names):
            running = 0
        for number, name in enumerate(names, first):
            path = self._found(name)
            self.paths.append(path)
            try:
                self._book.add(Bundle.read(path), made_for.get(number - first))
            except (OSError, BundleError) as error:
                why = f"{path}: {reason(error) if isinstance(error, OSError) else error}"
                if number == running:
                    raise PlanGoneError(
                        f"{why}; workers run this plan: put it back, or resume from a checkpoint "
                        "with another --state"
                    ) from None
                _LOGGER.warning("%s; this plan is left out", why)
                self._book.leave_out()
                missing.add(number)
        standbys = lines.values("standby")
        self._book.with_bundle(running).standby = frozenset(standbys[-1] if standbys else ())
        if fitted is not None and first + fitted not in missing:
            self._book.with_bundle(first + fitted).fitted = first + fitted

    def _found(self, name: str) -> Path:
        """Path of a file that was noted under this name, perhaps with the path that the folder had then."""
        kept = self._folder / Path(name).name
        return kept if kept.is_file() else self._folder / name

    def _name(self, path: Path) -> str:
        return path.name if path.parent == self._folder else str(path.absolute())

    def add(self, path: Path, bundle: Bundle) -> None:
        self.notes.write(bundle=self._name(path))
        self.paths.append(path)
        self._book.add(bundle)

    def fit(self, path: Path, bundle: Bundle, made_for: Fitted) -> PlanBook:
        """A plan for these workers, to be used by them from now on, and where it is."""
        slow = [[*worker, by] for worker, by in made_for.slow.items()]
        self.notes.write(bundle=self._name(path), live=sorted(made_for.live), slow=slow)
        self.paths.append(path)
        number = self._book.add(bundle, made_for)
        book = self._book.with_bundle(number)
        book.fitted = number
        return book

    def unfit(self) -> None:
        """No plan is for certain workers any more."""
        if any(book.fitted is not None for book in self._book.family):
            self.notes.write(unfit=True)
            for book in self._book.family:
                book.fitted = None

    def keep_on_standby(self, standby: Collection[Worker], here: PlanBook) -> None:
        """These cells should get no micro-batches from now on, and no others, here or under another cut."""
        self.notes.write(standby=sorted(standby))
        for book in self._book.family:
            book.standby = frozenset(standby) if book is here else frozenset()

    def forget_slow_workers(self, here: PlanBook, bundle: int) -> None:
        """Under another cut all do the same, until it is known who is slow there, unless the plan that begins
        was made for those who are."""
        if here.fitted == bundle:
            for book in self._book.family:
                book.fitted = bundle if book is here else None
        else:
            self.unfit()
        if any(book.standby for book in self._book.family):
            self.keep_on_standby((), self._book)


def _noted(lines: Lines) -> tuple[list[str], dict[int, Fitted], int | None]:
    """Files of plans; by their places in that list, those for certain workers, and which of them is used."""
    names: list[str] = []
    made_for: dict[int, Fitted] = {}
    fitted: int | None = None
    for fields in (line.fields for line in lines.all):
        if "unfit" in fields:
            fitted = None
        if "bundle" not in fields:
            continue
        if "slow" in fields:
            fitted = len(names)
            slow = {(pipeline, stage): by for pipeline, stage, by in fields["slow"]}
            made_for[fitted] = Fitted(frozenset(fields["live"]), slow)
        names.append(fields["bundle"])
    return names, made_for, fitted


class Request(NamedTuple):
    """Request to `recyclec`."""

    failed: FailedWorkers
    layout: str = ""
    """Of another cut; the failed workers are then cells of its grid."""
    split: bool = False
    """True if every micro-batch is split in two."""
    workers: int = 0
    """If not 0, the fastest cut for so many workers is asked for, whoever they are."""

    def arguments(self, out: Path) -> list[str]:
        """Command that starts `recyclec`, for a job on its stdin."""
        if self.workers:
            return cut_arguments("-", self.workers, split=self.split, out=out)
        return plan_arguments("-", self.failed, layout=self.layout, split=self.split, out=out)


class PlansOnDemand:
    """Has plans made, takes them up, and tells what comes of it. The newest request wins."""

    def __init__(self, files: PlanFiles, job: str, folder: Path) -> None:
        """Plans stay in the folder."""
        self._files, self._job, self._folder = files, job, folder
        self._process: Recyclec | None = None
        self._made = 0
        self._request = Request(())
        """The last one."""
        self._is_ahead = False
        """True if it was to plan ahead."""
        self._wanted: Request | None = None
        """The last one that was not."""
        self._killed = 0
        """Number of processes at the last request."""
        self.error = ""
        """Error of the last request, if it failed."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    @property
    def is_awaited(self) -> bool:
        """True if one is being made that training waits for."""
        return self.is_busy and not self._is_ahead

    def want(self, live: tuple[Worker, ...], book: PlanBook, *, is_needed: bool = False) -> None:
        """One for exactly the cells of this book that are left. If all wait for it, it is tried again."""
        wanted = request_for(book, tuple(worker for worker in book.grid if worker not in live))
        if wanted != self._wanted or (is_needed and not self.is_awaited):
            self._wanted = wanted
            self.ask(wanted)

    def ask(self, request: Request, *, is_ahead: bool = False) -> None:
        """Begin to plan for this; before it is needed, at the lowest priority."""
        self.stop()
        self._is_ahead, self._killed = is_ahead, 0
        if self._job.strip():
            self._begin(request)
        else:
            self.error = "the bundle does not say for which job it is"

    def _begin(self, request: Request) -> None:
        self._made, self._request = self._made + 1, request
        job = self._folder / "job"
        try:
            write_whole(job, self._job.encode("utf-8"))
            self._process = Recyclec(request.arguments(self._path()), stdin=job, in_background=self._is_ahead)
        except OnDemandError as error:
            self.error = str(error)
        except OSError as error:
            self.error = sentence(error)

    def made(self) -> tuple[Path, Bundle] | None:
        """A plan that is ready now, once."""
        if self._process is None or not self._process.has_ended:
            return None
        process, self._process = self._process, None
        try:
            process.output()
            return self._path(), read_made_plan(self._path())
        except KilledError as error:
            self._killed += 1
            if self._killed < _MOST_KILLED:
                _LOGGER.warning("%s: planning begins anew", error)
                self._begin(self._request)
            else:
                self.error = f"{error}, {self._killed} times"
        except OnDemandError as error:
            self.error = str(error)
        return None

    def take(self) -> list[PlanMade | PlanningFailed | JobEvent]:
        """Take the result of the last request, if there is one by now."""
        made = self.made()
        if made is not None and is_of_job(made[1], self._files.first):
            self._files.add(*made)
            said = JobEvent("planned on demand", made[1].plans[0].period)
            return [PlanMade()] if self._is_ahead else [said, PlanMade()]
        if made is not None:
            self.error = "the job that the bundle was made from is not the one of its plans"
        error, self.error = self.error, ""
        if not error or self._is_ahead:
            # Nobody waits for it.
            return []
        said = JobEvent(f"no plan on demand: {error}")
        return [said, PlanningFailed(f"there is no plan for these failures: {error}")]

    def stop(self) -> None:
        self.error = ""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _path(self) -> Path:
        # Another coordinator of the same job may have left plans here.
        return self._folder / f"on-demand-{os.getpid()}-{self._made}.plan"


def is_of_job(bundle: Bundle, first: Bundle) -> bool:
    """True if a plan made on demand trains the model of the job's first bundle with as many micro-batches."""
    if bundle.tensor != first.tensor or sum(bundle.cut) != sum(first.cut):
        return False
    units, whole = (each.pipelines * each.microbatches for each in (bundle, first))
    if first.cut:
        return units in (whole, 2 * whole)
    grids = ((each.pipelines, each.microbatches, each.chunk_stages) for each in (bundle, first))
    return len(set(grids)) == 1


def request_for(book: PlanBook, failed: FailedWorkers) -> Request:
    """Request for a plan for these failed cells of a book.

    Under another cut the layout names the grid: as many workers on each stage as its first plan has, or as
    many as are left where that is more. Peers are interchangeable, so that the last of them count as failed.
    """
    if book.is_own:
        return Request(failed)
    first, _ = next(book.layouts())
    left = [book.pipelines - sum(stage == other for _, stage in failed) for other in range(book.stages)]
    most = [max(pair) for pair in zip(first, left, strict=True)]
    gone = tuple(cell for cell in book.grid if left[cell[1]] <= cell[0] < most[cell[1]])
    return Request(gone, book.layout(most).removesuffix(" in halves"), book.split == 2)


def planned_names(book: PlanBook, failed: Collection[Worker]) -> dict[Worker, Worker]:
    """From each cell that is left to the name that a plan on demand has for it."""
    left = [cell for cell in book.grid if cell not in failed]
    if book.is_own:
        return {cell: cell for cell in left}
    seen = [0] * book.stages
    names: dict[Worker, Worker] = {}
    for cell in left:
        names[cell] = (seen[cell[1]], cell[1])
        seen[cell[1]] += 1
    return names
