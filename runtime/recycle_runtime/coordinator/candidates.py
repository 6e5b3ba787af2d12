"""Candidates for what a job could run next: their one form, and those that planned periods speak for.

    moves     workers take the places of failed ones, so that the failures lie where they cost least
    re-cuts   layers travel to a layout with a shorter step, for as many workers or fewer; then all switch

Sources propose and do nothing else; `reconfiguration` weighs. Needs no torch.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from recycle_runtime.coordinator.events import MovesWanted, RecutWanted, StopWanted
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.plans import Notes
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import CostOfMoves, Counts, Moves, least_moves, moves_text
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import HoldersGoneError, LayerRange, Recut, best_layout, least_bytes_to
from recycle_runtime.plan.shard_moves import shard_transfers
from recycle_runtime.protocol.messages.observers import JobEvent

Wish = StopWanted | MovesWanted | RecutWanted
RECUT = "re-cut"
_LOGGER = logging.getLogger(__name__)
_ROWS_AFTER_FAILURE = 8
"""Steps after a move that came to nothing before the next try; twice as many after each further one."""


class Situation(NamedTuple):
    """A running job as the sources of candidates see it."""

    job: StateMachine
    rows: int
    """Steps of this generation."""
    outlook: Outlook
    costs: CostOfMoves
    is_started: Callable[[Worker], bool] = lambda worker: False
    """True once an agent has been ordered to start this worker."""


class Candidate(NamedTuple):
    """A plan that could run next, on certain workers."""

    change: JobChange
    """Its gain, and what switching to it costs."""
    take: Callable[[], Wish]
    """Take its plan up, if it is new; returns what the state machine has to do."""
    is_told: bool = True
    """False for one that its source tells of."""


def moves_of_workers(now: Situation) -> list[Candidate]:
    """Healthy workers in the places of failed ones, so that the failures lie where they cost least."""
    job, assignment = now.job, now.job.assignment
    can_move = job.cells.is_plain and job.is_settled and not job.roster.fewer
    if assignment is None or not (now.outlook.step and can_move):
        # A worker that is on its way has the place that others would move to.
        return []
    book, live = job.book, assignment.roles.keys()
    failed, period = book.counts(live), book.planned_period(assignment)
    best = book.best_placement(sum(failed)) if any(failed) else None
    if best is None or best.counts == failed or period is None:
        return []
    moves = least_moves(live, best.counts, book.pipelines, book.standby)
    if any(map(now.is_started, moves.values())):
        # So has one that has not come yet.
        return []
    if book.has_shards and not job.participants.shards.can_spare(moves):
        return []
    if job.members.lack_of_slots(best.counts) is not None:
        return []
    saving, pause = 1 - best.period / period, now.costs.of(moves)
    change = JobChange(moves_text(moves), "moved", now.outlook, saving, pause)
    return [Candidate(change, lambda: MovesWanted(moves))]


class Recuts:
    """Knows what layers take, and proposes the best other layout."""

    def __init__(self, own: PlanBook, when: str, notes: Notes) -> None:
        """`when`: auto, always (whenever it saves anything) or off."""
        self._own, self._when, self._notes = own, when, notes
        self._layer_bytes: list[int] = [0] * sum(own.cut)
        self._can_halve: bool | None = None
        """True if micro-batches can be split in two, as all workers of this generation say that know it."""
        self._is_layered = False
        """True if the program gives layers, as its workers say."""
        self._has_whole_stages = False
        self._untold = ""
        """Reason why the job keeps its cut, until it has been reported."""
        self._failures = 0
        self._not_before = 0
        """A number of rows of this generation."""
        if why := self._obstacle():
            _LOGGER.info("no re-cut is considered: %s", why)

    @property
    def is_considered(self) -> bool:
        return self._is_layered and not (self._obstacle() or self._has_whole_stages)

    @property
    def can_move_layers(self) -> bool:
        """True if layers could travel, also to a cut that the bundle has no plans of."""
        return self._when != "off" and self._is_layered and not self._has_whole_stages

    def change(self, now: Situation, way: Recut, layout: str, saving: float, least: float = 0.0) -> JobChange:
        """A re-cut, which has to save the share `least` of a step."""
        moving = way.seconds(now.costs.rate)
        return JobChange(
            f"layout {layout}", RECUT, now.outlook, saving, now.costs.regroup, moving, way.size, least,
            is_asked_for=self._when == "always",
        )  # fmt: skip

    def way_to(
        self, job: StateMachine, ranges: Sequence[LayerRange], counts: Counts, places: Moves
    ) -> Recut | None:
        """To so many workers on each stage of a cut, some of them in certain cells; None if nobody has to
        move for that, or a layer has no holder, or a worker has lost ranks: its layers stay here."""
        if job.roster.fewer:
            return None
        settled = {worker: stage for worker, (_, stage) in places.items()}
        try:
            held = job.cells.held(job.roster.whole())
            way = self._with_shards(
                job, least_bytes_to(held, ranges, counts, self._layer_bytes, settled=settled), ranges
            )
        except HoldersGoneError:
            return None
        return way if way.joiners else None

    def _with_shards(self, job: StateMachine, way: Recut, ranges: Sequence[LayerRange]) -> Recut:
        """Also with the shards that travel; HoldersGoneError as long as their owners are not known."""
        if not self._own.has_shards:
            return way
        if (held := job.participants.shards.held()) is None:
            raise HoldersGoneError("shards are on their way to their owners")
        owners, nodes = self._own.first.owners, job.participants.shards.nodes()
        return way._replace(shards=shard_transfers(held, way.stages, ranges, owners, nodes))

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
            why = ", or an optimizer whose state cannot be divided" if self._own.has_shards else ""
            self._untold = f"the job keeps its cut: the program gives whole stages{why}"

    def recall(self, layer_bytes: Sequence[int]) -> None:
        """Knowledge of the coordinator before this one."""
        if layer_bytes:
            self._is_layered, self._layer_bytes = True, list(layer_bytes)

    def generation(self) -> None:
        """A new one begins: a first failure may be followed by another try at once, further ones wait."""
        self._can_halve = None
        self._not_before = self._wait if self._failures > 1 else 0

    def ended(self, why: str | None, rows: int) -> None:
        """Layers have arrived, or a move has come to nothing in a generation that goes on."""
        self._failures = 0 if why is None else self._failures + 1
        self._not_before = rows + self._wait

    @property
    def _wait(self) -> int:
        return _ROWS_AFTER_FAILURE * 2 ** min(self._failures, 6)

    def news(self) -> list[JobEvent]:
        """Report once why the job keeps its cut."""
        told, self._untold = self._untold, ""
        return [JobEvent(told)] if told else []

    def candidates(self, now: Situation) -> list[Candidate]:
        """One at most."""
        job, is_known = now.job, now.outlook.step > 0 or self._when == "always"
        is_early = now.rows < max(1, self._not_before) or not is_known
        if not self.is_considered or is_early or not job.is_settled or job.assignment is None:
            return []
        if job.roster.fewer:
            return []
        ticks = job.book.planned_period(job.assignment) or job.assignment.period
        found = self._best(job, ticks)
        if found is None:
            return []
        period, layout, (book, _), way = found
        change = self.change(now, way, layout, 1 - period / ticks)
        return [Candidate(change, lambda: RecutWanted(LayerMove(book, way, layout, change.moving)))]

    def _best(self, job: StateMachine, ticks: int) -> tuple[int, str, tuple[PlanBook, Counts], Recut] | None:
        """The best of the layouts with a shorter step that the workers can take."""
        live = job.roster.whole()
        quicker = [
            (period, book.layout(counts), (book, counts))
            for book in self._own.family
            if book.split == 1 or self._can_halve
            for counts, period in book.layouts()
            if sum(counts) <= len(live) and period < ticks
            if job.members.lack_under(book, counts) is None
        ]
        held = job.cells.held(live) if quicker else {}
        idle = [worker for worker in held if job.cells.of(worker) in job.book.standby]

        def way_to(to: tuple[PlanBook, Counts]) -> Recut:
            book, counts = to
            way = least_bytes_to(held, book.ranges, counts, self._layer_bytes, idle)
            return self._with_shards(job, way, book.ranges)

        with suppress(HoldersGoneError):
            return best_layout(quicker, ticks, way_to)
