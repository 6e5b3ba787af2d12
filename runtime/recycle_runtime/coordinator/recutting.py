"""When a job in layers should be cut anew, and to which layout. Needs no torch.

After a failure or a re-join the workers go on at once under the cut they have. If a plan of another layout
for as many workers, or fewer, has a shorter step, what it saves until the next change is weighed against the
time until its layers have travelled and the pause of the switch.
"""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from recycle_runtime.coordinator.events import RecutWanted
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.plans import Notes
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import CostOfMoves, Counts, Moves
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import (
    HoldersGoneError,
    Recut,
    least_bytes_to,
)
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.observers import JobEvent

_LOGGER = logging.getLogger(__name__)
_ALIKE = 1.01
"""Plans whose steps differ by less than this are equal; then fewer bytes count."""
_MOST_COMPARED = 16
_ROWS_AFTER_FAILURE = 8
"""Steps after a move that came to nothing before the next try; twice as many after each further one."""


class Target(NamedTuple):
    """A layout that the live workers could take."""

    book: PlanBook
    workers: Counts
    """On each stage."""
    period: int
    """Ticks."""

    @property
    def layout(self) -> str:
        return self.book.layout(self.workers)


class Recutting:
    """Looks for a better cut once enough steps of a generation have been seen."""

    def __init__(self, own: PlanBook, when: str, notes: Notes) -> None:
        """`when`: auto, always (whenever it saves anything) or off."""
        self._own, self._when, self._notes = own, when, notes
        self._layer_bytes: list[int] = [0] * sum(own.cut)
        self._can_halve: bool | None = None
        """Whether micro-batches can be split in two, as all workers of this generation say that know it."""
        self._is_layered = False
        """Whether the program gives layers, as its workers say."""
        self._has_whole_stages = False
        self._untold = ""
        """Why the job keeps its cut, as long as nobody has been told."""
        self._weighed: set[tuple[frozenset[Worker], str]] = set()
        self._failures = 0
        self._not_before = 0
        """A number of rows of this generation."""
        if why := self._obstacle():
            _LOGGER.info("no re-cut is considered: %s", why)

    @property
    def is_considered(self) -> bool:
        return self._is_layered and not self._obstacle()

    @property
    def can_move_layers(self) -> bool:
        """Whether layers could travel, also to a cut that the bundle has no plans of."""
        return self._when != "off" and self._is_layered

    def weigh(
        self, way: Recut, layout: str, saving: float, outlook: Outlook, costs: CostOfMoves
    ) -> tuple[JobEvent, float | None]:
        """The line about a re-cut, and seconds until its layers have travelled if it should be made."""
        moving = way.seconds(costs.rate)
        change = JobChange(f"layout {layout}", "re-cut", outlook, saving, costs.regroup, moving, way.size)
        if self._when == "always" and saving > 0 and not change.pays:
            return JobEvent(f"{str(change).removesuffix('not re-cut')}re-cut, as asked for"), moving
        return JobEvent(str(change)), moving if change.pays else None

    def way_to(self, job: StateMachine, book: PlanBook, counts: Counts, places: Moves) -> Recut | None:
        """To so many workers on each stage of a cut, some of them in certain cells; None if nobody has to
        move for that, or a layer has no holder."""
        live = job.roster.whole()
        settled = {worker: stage for worker, (_, stage) in places.items()}
        try:
            held = job.cells.held(live)
            way = least_bytes_to(held, book.ranges, counts, self._layer_bytes, settled=settled)
        except HoldersGoneError:
            return None
        return way if way.transfers else None

    def _obstacle(self) -> str:
        if self._when == "off":
            return "it is switched off"
        if not self._own.cut:
            return "the job gives whole stages only"
        return "the bundle has plans of one cut only" if len(self._own.family) == 1 else ""

    def began(self, first: int, layer_bytes: Sequence[int], *, can_halve: bool | None = None) -> None:
        """A process holds these layers, and has seen micro-batches that can be split in two, or others."""
        if can_halve is not None:
            self._can_halve = can_halve and self._can_halve is not False
        if layer_bytes:
            were_known = all(self._layer_bytes)
            self._is_layered = True
            self._layer_bytes[first : first + len(layer_bytes)] = layer_bytes
            if all(self._layer_bytes) and not were_known:
                self._notes.write(layer_bytes=self._layer_bytes)
        elif not self._obstacle() and not self._has_whole_stages:
            self._has_whole_stages = True
            self._untold = "the job keeps its cut: the program gives whole stages"

    def recall(self, layer_bytes: Sequence[int]) -> None:
        """What the coordinator before this one knew."""
        if layer_bytes:
            self._is_layered, self._layer_bytes = True, list(layer_bytes)

    def generation(self) -> None:
        """A new one begins: a first failure may be followed by another try at once, further ones wait."""
        self._weighed.clear()
        self._can_halve = None
        self._not_before = self._wait if self._failures > 1 else 0

    def ended(self, why: str | None, rows: int) -> None:
        """Layers have arrived, or a move has come to nothing in a generation that goes on."""
        self._failures = 0 if why is None else self._failures + 1
        self._not_before = rows + self._wait
        self._weighed.clear()

    @property
    def _wait(self) -> int:
        return _ROWS_AFTER_FAILURE * 2 ** min(self._failures, 6)

    def turn(
        self, job: StateMachine, rows: int, costs: CostOfMoves, outlook: Outlook
    ) -> list[JobEvent | RecutWanted]:
        """Things to do now, with a line for whatever is weighed for the first time."""
        if self._untold:
            told, self._untold = JobEvent(self._untold), ""
            return [told]
        is_early = rows < max(1, self._not_before) or (outlook.step == 0 and self._when != "always")
        if not self.is_considered or is_early or not job.is_settled:
            return []
        live = job.roster.whole()
        found = self._best(job, live)
        if found is None:
            return []
        target, recut = found
        key = frozenset(live), target.layout
        if key in self._weighed:
            return []
        self._weighed.add(key)
        saving = 1 - target.period / self._period(job)
        told, moving = self.weigh(recut, target.layout, saving, outlook, costs)
        if moving is None:
            return [told]
        return [told, RecutWanted(LayerMove(target.book, recut, target.layout, moving))]

    def _best(self, job: StateMachine, live: Sequence[Worker]) -> tuple[Target, Recut] | None:
        """The quickest of other layouts that these workers can take; of equals that with the fewest bytes."""
        now = self._period(job)
        targets = [target for target in self._targets(len(live)) if target.period < now]
        if not targets:
            return None
        quickest = min(target.period for target in targets)
        alike = [target for target in targets if target.period <= _ALIKE * quickest]
        alike.sort(key=lambda target: (target.period, target.layout))
        held = job.cells.held(live)
        idle = [worker for worker in live if job.cells.of(worker) in job.book.standby]
        ways: list[tuple[Target, Recut]] = []
        for target in alike[:_MOST_COMPARED]:
            try:
                ranges = target.book.ranges
                recut = least_bytes_to(held, ranges, target.workers, self._layer_bytes, idle)
            except HoldersGoneError:
                return None
            ways.append((target, recut))
        return min(ways, key=lambda way: way[1].size)

    def _targets(self, workers: int) -> list[Target]:
        return [
            Target(book, counts, period)
            for book in self._own.family
            if book.split == 1 or self._can_halve
            for counts, period in book.layouts()
            if sum(counts) <= workers
        ]

    def _period(self, job: StateMachine) -> int:
        """Of the plan in use, or one for the same failures, with the times of the job as it was compiled."""
        assignment, book = job.assignment, job.book
        assert assignment is not None
        original = book.first.job_text
        if book.bundles[assignment.bundle].job_text == original:
            return assignment.period
        counts = book.counts(job.cells.all_of(job.roster.whole()))
        return book.period(counts, original) or assignment.period
