"""Plans for measured op times, made and compared by processes while training goes on. Needs no torch.

One request at a time. Each variant is planned with the measured times and retimed with them, and so is the
plan in use, so that both are compared under the same conditions. For a worker that is slower than its peers
there are two more variants: a plan that gives it less to do, and one that counts it as failed, so that it
is a standby. If layers can travel there is a third: a plan of another cut, in which its stage may have fewer
layers. If that is the best of all, plans for the same cut with the op times of the job are made too: one for
workers that are equally fast, and one that covers a failure more.
"""

import json
import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from recycle_runtime.coordinator.plans import planned_names, request_for
from recycle_runtime.files import write_whole
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle, bundle_alone
from recycle_runtime.plan.on_demand import (
    OnDemandError,
    Recyclec,
    cut_for_slow_arguments,
    plan_arguments,
    read_made_plan,
    retime_arguments,
)
from recycle_runtime.plan.plan_book import PlanBook, workers_of

_TICKS = "step_ticks"


class Variant(NamedTuple):
    """A plan for the same failures, in which some live workers have less to do, or are standbys.

    Workers are cells of the current cut.
    """

    path: Path
    failed: tuple[Worker, ...]
    """As the plan counts them: the failed workers and the standbys."""
    standby: tuple[Worker, ...] = ()
    lighter: Mapping[Worker, float] = MappingProxyType({})
    """Those who have less to do, each with how many times longer it takes than its peers."""
    is_recut: bool = False
    """True if the cut is chosen for them; they are still cells of the current one."""


class ChosenCut(NamedTuple):
    """The cut that was chosen for slow workers."""

    layout: str
    slow: tuple[tuple[Worker, float], ...]
    """Cells of its grid for slow workers, each with its factor; the slowest first."""
    plans: tuple[tuple[Path, Bundle], ...] = ()
    """For workers of equal speed and with the op times of the job; none if there are such plans already."""


class InUse(NamedTuple):
    """The plan that runs now."""

    path: Path
    failed: tuple[Worker, ...]
    slow: Mapping[Worker, float]
    """Roles of workers that are slower than their peers, each with its factor."""


class Offer(NamedTuple):
    """A variant that has been made."""

    variant: Variant
    bundle: Bundle
    saving: float
    """Of a step as it is now, as a share; less than 0 if it would take longer."""
    cut: ChosenCut | None = None
    """Of a variant that is a re-cut."""


class Replanner:
    """Plans and times variants, one process after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._left: deque[tuple[Variant | None, list[str]]] = deque()
        """Commands; they read the job as it was written, if they read from stdin."""
        self._book: PlanBook | None = None
        self._cut: ChosenCut | None = None
        self._about: Variant | None = None
        """Of the process that runs; None for the plan in use."""
        self._process: Recyclec | None = None
        self._ticks: dict[Path | None, float] = {}
        """Of a step: of variants by their paths, and of the plan in use."""
        self._variants: list[Variant] = []
        self._made_for_cut: list[Path] = []
        """Plans for workers of equal speed."""
        self.error = ""
        """Error of the last request, if it failed."""

    @property
    def is_busy(self) -> bool:
        return self._process is not None

    def ask(
        self,
        job: str,
        in_use: InUse,
        book: PlanBook,
        failed: Collection[Worker],
        slow: Mapping[Worker, float],
        *,
        may_be_lighter: bool,
        source: str = "",
    ) -> None:
        """Begin: a plan in which all do the same, and if some are `slow`, those for them.

        With the text of the job as it was written, a plan of another cut is among these.
        """
        self.stop()
        self._book = book
        times = self._folder / "measured.job"
        # Whoever does not find a file for which the disk had no room says so.
        with suppress(OSError):
            write_whole(times, job.encode("utf-8"))
            write_whole(self._source, source.encode("utf-8"))
        self._variants = [self._variant(failed)]
        if slow and may_be_lighter:
            self._variants.append(self._variant(failed, lighter=slow))
        if slow:
            self._variants.append(self._variant(failed, standby=slow))
        if slow and may_be_lighter and source.strip():
            # The last, so that it is known whether it is the best.
            self._variants.append(self._variant(failed, lighter=slow, is_recut=True))
        self._left.append((None, retime_arguments(in_use.path, in_use.failed, str(times), in_use.slow)))
        for variant in self._variants:
            self._left += [(variant, words) for words in _commands(variant, book, slow, str(times))]
        try:
            self._next()
        except OnDemandError as error:
            self._give_up(str(error))

    def file_of(self, bundle: Bundle) -> Path:
        """A file with the plans of one cut."""
        path = self._folder / f"cut-{bundle.content_hash[:16]}.plan"
        if not path.exists():
            with suppress(OSError):
                write_whole(path, bundle_alone(bundle))
        return path

    def made(self) -> list[Offer] | None:
        """Offers from the last request, once; None while there are none, or none will come."""
        if self._process is None or not self._process.has_ended:
            return None
        process, self._process = self._process, None
        try:
            self._take(process)
            if self._left:
                self._next()
                return None
            return None if self.error else self._offers()
        except (OnDemandError, ValueError, KeyError) as error:
            self._give_up(str(error))
            return None

    def _take(self, process: Recyclec) -> None:
        try:
            said = process.output()
        except OnDemandError as error:
            self._without(self._about, str(error))
            return
        if said:
            answer = json.loads(said)
            self._ticks[self._about and self._about.path] = float(answer[_TICKS])
            if self._about is not None and self._about.is_recut:
                self._choose_cut(self._about, answer)

    def _choose_cut(self, about: Variant, answer: Mapping[str, Any]) -> None:
        """If it is the best of all, its cut needs plans for workers of equal speed too."""
        slow = [(_cell(one["worker"]), float(one["factor"])) for one in answer["slow"]]
        slow.sort(key=lambda entry: (-entry[1], entry[0]))
        self._cut = ChosenCut(str(answer["layout"]), tuple(slow))
        if self._ticks[about.path] > min(self._ticks.values()):
            return
        assert self._book is not None
        bundle = read_made_plan(about.path)
        counts = workers_of(bundle)
        for book in self._book.family:
            if book.is_of(bundle) and any(known == counts for known, _ in book.layouts()):
                return
        more = [(count - 1, stage) for stage, count in enumerate(counts) if count > 1]
        split = self._book.split == 2
        for number, failed in enumerate(([], more) if more else ([],)):
            out = about.path.with_suffix(f".{number}.plan")
            plan = plan_arguments("-", failed, layout=self._cut.layout, split=split, out=out)
            self._left.append((about, plan))
            self._made_for_cut.append(out)

    def _give_up(self, why: str) -> None:
        self._left.clear()
        self.error = why

    def _without(self, failed: Variant | None, why: str) -> None:
        """One that cannot be made is left out; without any, or the plan in use, there is no answer."""
        self._variants = [one for one in self._variants if one is not failed]
        self._left = deque(entry for entry in self._left if entry[0] is not failed)
        if failed is None or not self._variants:
            self._give_up(why)

    def stop(self) -> None:
        self.error = ""
        self._left.clear()
        self._ticks = {}
        self._cut, self._made_for_cut = None, []
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _variant(
        self,
        failed: Collection[Worker],
        standby: Collection[Worker] = (),
        lighter: Mapping[Worker, float] = MappingProxyType({}),
        *,
        is_recut: bool = False,
    ) -> Variant:
        self._count += 1
        counted = tuple(sorted({*failed, *standby}))
        # Another coordinator of the same job may have left plans here.
        path = self._folder / f"measured-{os.getpid()}-{self._count}.plan"
        return Variant(path, counted, tuple(sorted(standby)), lighter, is_recut)

    @property
    def _source(self) -> Path:
        """The job as it was written."""
        return self._folder / "source.job"

    def _next(self) -> None:
        self._about, arguments = self._left.popleft()
        self._process = Recyclec(arguments, stdin=self._source if "-" in arguments else None)

    def _offers(self) -> list[Offer]:
        now = self._ticks[None]
        offers: list[Offer] = []
        for variant in self._variants:
            cut = self._cut if variant.is_recut else None
            if cut is not None:
                cut = cut._replace(plans=tuple((path, read_made_plan(path)) for path in self._made_for_cut))
            saving = 1 - self._ticks[variant.path] / now
            offers.append(Offer(variant, read_made_plan(variant.path), saving, cut))
        return offers


def _commands(variant: Variant, book: PlanBook, slow: Mapping[Worker, float], times: str) -> list[list[str]]:
    """To plan it, and to see how long its step takes with the slow workers that work in it."""
    if variant.is_recut:
        # What is planned says that itself.
        workers, factors = len(book.grid) - len(variant.failed), sorted(slow.values(), reverse=True)
        return [cut_for_slow_arguments(times, workers, factors, split=book.split == 2, out=variant.path)]
    names = planned_names(book, variant.failed)
    request = request_for(book, variant.failed)
    lighter = {names[cell]: by for cell, by in variant.lighter.items()}
    working = {names[cell]: by for cell, by in slow.items() if cell not in variant.standby}
    gone = [cell for cell in book.grid if cell not in names.values()]
    plan = plan_arguments(
        times, request.failed, lighter, layout=request.layout, split=request.split, out=variant.path
    )
    return [plan, retime_arguments(variant.path, gone, times, working)]


def _cell(numbers: Sequence[int]) -> Worker:
    rank, stage = map(int, numbers)
    return rank, stage
