"""Plans for measured op times: when to ask for them, and the candidates among them. Needs no torch.

Ops that have shifted against each other, or a worker that is slower than its peers, are reason to ask;
`replanning` has the plans made.
"""

from collections.abc import Collection, Mapping

from recycle_runtime.coordinator.candidates import RECUT, Candidate, Recuts, Situation
from recycle_runtime.coordinator.drift import SmoothedTimes, calibrated, measured_times, shift
from recycle_runtime.coordinator.events import RecutWanted, StopWanted
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.measured_job import JobText, StageTimes
from recycle_runtime.coordinator.plans import PlanFiles
from recycle_runtime.coordinator.replanning import ChosenCut, InUse, Offer, Replanner, Variant
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.plan_book import (
    Assignment,
    Fitted,
    PlanBook,
    grid_shape,
    layers_of_stages,
    workers_of,
)
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent

_ROWS_FOR_PLANS = 10
"""Steps of a generation before plans are considered; the first of them is warm-up."""
_ROWS_BETWEEN_LOOKS = 5
_SLOW = 1.5
"""A worker that takes so many times longer than its peers is slow."""
_STILL_SLOW = 1.25
"""The same for one that was slow already."""
_TOO_SLOW = 2.0
"""Planned periods, which assume equally fast workers, are not compared while some worker is this slow."""
_OTHER_PACE = 1.3
"""A slow worker whose factor has changed by so much needs another plan."""
_MOST_PATIENCE = 64


class MeasuredPlans:
    """Has plans made when ops have shifted or a worker is slower than its peers, and proposes them."""

    def __init__(
        self,
        book: PlanBook,
        options: AdaptationOptions,
        replanner: Replanner,
        files: PlanFiles,
        recuts: Recuts,
    ) -> None:
        self._book, self._replanner, self._files, self._recuts = book, replanner, files, recuts
        self._least, self._every = options.replan, options.replan_every
        self.job = JobText(book.bundles[0].job_text)
        self.ops = SmoothedTimes()
        self._here: PlanBook | None = None
        """The plans of the current cut, once a generation has begun."""
        self._cells: dict[Worker, Worker] = {}
        """Cell of each worker in its grid; op times are those of cells."""
        self._compared_at, self._has_slow = -1, False
        """After how many rows workers were compared with their peers, and what was found."""
        self._look_at = _ROWS_FOR_PLANS
        self._tick: float | None = None
        self._asked_at = -self._every
        self._patience = 1
        """Intervals after which the same is asked for once more, if nothing has come of it."""
        self._asked_for: StageTimes | None = None
        self._about = ""
        self._offered: list[Offer] = []
        """Plans that have been made and are being weighed."""
        self._slow: dict[Worker, float] = {}
        self._back_from: dict[Worker, tuple[int, int]] = {}
        """For standbys that are slow: the step from which on they may work again, and how
        long they had to wait for that."""
        self._has_said_why_not = False

    def measured(self, member: Member, times: Mapping[str, float]) -> None:
        """Seconds of a worker's ops; its ranks wait for each other, so one speaks for all."""
        cell = self._cells.get(member.worker)
        if member.tp_rank == 0 and cell is not None:
            self.ops.add(cell, times)

    def generation(
        self, assignment: Assignment, cells: Mapping[Worker, Worker], fewer: Mapping[Worker, int]
    ) -> None:
        """A new generation has been ordered; what was measured counts for a worker that stays where it is.

        `fewer`: processes of workers that have lost tensor-parallel ranks.
        """
        here = self._book.with_bundle(assignment.bundle)
        if set(cells.values()) != set(self._cells.values()):
            self._patience, self._asked_for = 1, None
        if here is not self._here and self._here is not None:
            self.ops.keep(())
            self._slow, self._back_from, self._asked_for = {}, {}, None
            self._files.forget_slow_workers(here, assignment.bundle)
        before = self._names
        for worker, cell in cells.items():
            if before.get(cell, worker) != worker:
                self.ops.forget(cell)
        self.ops.keep(cells.values())
        self.ops.have_fewer_ranks(
            {cells[worker]: ranks for worker, ranks in fewer.items() if worker in cells}
        )
        self._here, self._cells = here, dict(cells)
        if here.fitted == assignment.bundle:
            self._slow = dict(here.slow_in(assignment))
        for cell in self._idle(assignment):
            # What it will do there is all that it is judged by.
            self.ops.forget(cell)
        self._replanner.stop()
        self._look_at, self._compared_at = _ROWS_FOR_PLANS, -1

    def move_ended(self, why: str | None) -> None:
        """A plan that was for workers in cells where they do not come to stand is of no use."""
        for book in self._book.family:
            if why is not None and book is not self._here:
                book.fitted = None

    def stop(self) -> None:
        self._replanner.stop()

    def has_slow_workers(self, now: Situation) -> bool:
        """True if a worker is much slower than its peers, or the plan in use is for such workers."""
        if self._compared_at != now.rows:
            # As of the last step of all.
            self._compared_at = now.rows
            self._has_slow = bool(self.ops.slow(self._cells.values(), _TOO_SLOW))
        assignment = now.job.assignment
        known = () if assignment is None else now.job.book.slow_in(assignment)
        factors = (self.ops.factor(cell) for cell in known)
        return self._has_slow or any(factor is None or factor >= _STILL_SLOW for factor in factors)

    # What has been made.

    def candidates(self, now: Situation) -> list[Candidate]:
        """Once for every request: the plans of this cut, and perhaps one of another."""
        self._offered = self._replanner.made() or []
        # A plan for measured times stays of use when workers change.
        outlook = now.outlook._replace(seconds_to_change=float("inf"))
        found: list[Candidate | None] = []
        for offer in self._offered:
            if offer.cut is None:
                found.append(self._of_this_cut(offer, now, outlook))
            elif now.job.is_settled:
                found.append(self._of_another(offer, offer.cut, now))
        return [candidate for candidate in found if candidate is not None]

    def _of_this_cut(self, offer: Offer, now: Situation, outlook: Outlook) -> Candidate:
        word, pause, least = _word_for(offer.variant), now.costs.regroup, self._least or 0.0
        change = JobChange("a plan", word, outlook, offer.saving, pause, least=least)
        book, step = now.job.book, now.job.participants.rows.next
        return Candidate(change, lambda: self._use(offer, book, step), is_told=False)

    def _of_another(self, offer: Offer, cut: ChosenCut, now: Situation) -> Candidate | None:
        """Slow workers get the cells that its plan has for them; its cut needs plans for others too."""
        plain = (*(book.first for book in self._book.family), *(bundle for _, bundle in cut.plans))
        if all(grid_shape(bundle) != grid_shape(offer.bundle) for bundle in plain):
            return None
        slowest = sorted(self._slow, key=lambda cell: (-self._slow[cell], cell))
        names, counts = self._names, workers_of(offer.bundle)
        places = {names[cell]: place for cell, (place, _) in zip(slowest, cut.slow, strict=True)}
        way = self._recuts.way_to(now.job, layers_of_stages(offer.bundle), counts, places)
        if way is None:
            return None
        change = self._recuts.change(now, way, cut.layout, offer.saving, self._least or 0.0)

        def take() -> RecutWanted:
            book = self._use_cut(offer, cut)
            return RecutWanted(LayerMove(book, way, book.layout(counts), change.moving, places))

        return Candidate(change, take)

    def news(self, taken: JobChange | None, now: Situation) -> list[JobEvent]:
        """The line about what has been made, or why nothing could be; `taken` is a candidate from here."""
        if not self._offered and not self._replanner.error:
            return []
        if taken is None:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        if not self._offered:
            error, self._replanner.error = self._replanner.error, ""
            return [JobEvent(f"{self._about}: no plan for measured op times: {error}")]
        offered = offers_text(self._offered, now.outlook.step, self._least or 0.0, self._names)
        outcome = "not taken"
        if taken is not None:
            outcome = f"taken, with {taken.what}" if taken.made == RECUT else taken.made
        self._offered = []
        return [JobEvent(f"{self._about}: {offered}: {outcome}")]

    def _use(self, offer: Offer, book: PlanBook, step: int) -> StopWanted:
        """From the next change on."""
        self._patience, self._asked_for = 1, None
        standby = frozenset(offer.variant.standby)
        for worker in standby - book.standby:
            _, waited = self._back_from.get(worker, (0, self._every // 2))
            self._back_from[worker] = (step + 2 * waited, 2 * waited)
        if offer.variant.lighter:
            made_for = Fitted(frozenset(self._cells.values()), dict(offer.variant.lighter))
            self._files.fit(offer.variant.path, offer.bundle, made_for)
        else:
            self._files.unfit()
            self._files.add(offer.variant.path, offer.bundle)
        self._files.keep_on_standby(standby, book)
        return StopWanted("a plan for measured op times")

    def _use_cut(self, offer: Offer, cut: ChosenCut) -> PlanBook:
        """Its plans, once layers have travelled."""
        self._patience, self._asked_for = 1, None
        for path, bundle in cut.plans:
            self._files.add(path, bundle)
        counts = workers_of(offer.bundle)
        live = frozenset((rank, stage) for stage, count in enumerate(counts) for rank in range(count))
        return self._files.fit(offer.variant.path, offer.bundle, Fitted(live, dict(cut.slow)))

    # What is asked for.

    def ask(self, now: Situation) -> list[JobEvent]:
        """For plans, if there is reason to; at most every few steps."""
        if self._least is None or now.rows < self._look_at or self._replanner.is_busy:
            return []
        self._look_at = now.rows + _ROWS_BETWEEN_LOOKS
        if self.job.has_one_chunk_each and not self._book.slots:
            self._look(now.job, self._least)
        elif not self._has_said_why_not:
            self._has_said_why_not = True
            # In times of rounds are waits for peers, and of W they have what exchanges of tokens leave.
            where = "peers share no experts" if self._book.slots else "every worker holds one chunk only"
            return [JobEvent(f"plans for measured op times are made where {where}")]
        return []

    def _look(self, job: StateMachine, least: float) -> None:
        assignment, book, step = job.assignment, job.book, job.participants.rows.next
        # Op times are told by stage, and jobs with groups have them by chunk.
        if assignment is None or not assignment.is_exact or book.groups:
            return
        if step < self._asked_at + self._every:
            return
        planned = self.job if book.is_own else JobText(book.first.job_text)
        self._tick = self._tick or calibrated(planned, self.ops)
        gone = [cell for cell in book.grid if cell not in assignment.roles]
        lost = [sum(cell[1] == stage for cell in gone) for stage in range(planned.stages)]
        times = None if self._tick is None else measured_times(planned, self.ops, self._tick, lost)
        if times is None:
            return
        in_use = JobText(book.bundles[assignment.bundle].job_text)
        change, most = shift(in_use.times, times, planned.microbatches)
        idle, lighter = self._idle(assignment), book.slow_in(assignment)
        known = idle | lighter.keys()
        slow = self._slow_workers(idle, known, step)
        if set(slow) == self._slow.keys() and not self._is_news(times, least, step):
            return
        if change < least and set(slow) == known and _are_as_slow(slow, lighter):
            return
        self._asked_at, self._asked_for, self._slow = step, times, slow
        names = self._names
        named = {names[cell]: by for cell, by in slow.items()}
        self._about = why_replan(change, most, named, [names[cell] for cell in known])
        text = self.job.with_times(times, planned)
        plan = self._in_use(assignment, {cell: by for cell, by in slow.items() if cell not in idle})
        may_recut = self.job.is_in_layers and self._recuts.can_move_layers
        source = self._files.first.job_source if may_recut else ""
        self._replanner.ask(text, plan, book, gone, slow, may_be_lighter=self.job.is_adaptive, source=source)

    def _in_use(self, assignment: Assignment, slow: Mapping[Worker, float]) -> InUse:
        """The plan of now; those of other cuts that came with the job have no file of their own yet."""
        bundle = self._book.bundles[assignment.bundle]
        is_recut = 0 < assignment.bundle <= len(self._book.first.recuts)
        path = self._replanner.file_of(bundle) if is_recut else self._files.paths[assignment.bundle]
        roles = {assignment.roles[cell]: by for cell, by in slow.items()}
        return InUse(path, bundle.plans[assignment.plan].failed, roles)

    @property
    def _names(self) -> dict[Worker, Worker]:
        """From cells to workers."""
        return {cell: worker for worker, cell in self._cells.items()}

    def _idle(self, assignment: Assignment) -> set[Worker]:
        """The standbys."""
        failed = self._book.bundles[assignment.bundle].plans[assignment.plan].failed
        return {place for place, role in assignment.roles.items() if role in failed}

    def _is_news(self, times: StageTimes, least: float, step: int) -> bool:
        """True if what was asked for and not taken should be asked for again."""
        if self._asked_for is None or step >= self._asked_at + self._every * self._patience:
            return True
        return shift(self._asked_for, times, self.job.microbatches)[0] >= least

    def _slow_workers(
        self, idle: Collection[Worker], known: Collection[Worker], step: int
    ) -> dict[Worker, float]:
        """Those who are slow; a standby counts as slow until it has seemed well for long enough."""
        others = set(self._cells.values()) - set(known)
        slow = self.ops.slow(others, _SLOW) | self.ops.slow(known, _STILL_SLOW)
        for worker in idle:
            if step < self._back_from.get(worker, (0, 0))[0]:
                slow.setdefault(worker, self._slow.get(worker, _SLOW))
        return slow


def _are_as_slow(slow: Mapping[Worker, float], planned: Mapping[Worker, float]) -> bool:
    """True if those who have less to do are about as slow as their plan has it."""
    ratios = [slow[worker] / by for worker, by in planned.items()]
    return all(1 / _OTHER_PACE < ratio < _OTHER_PACE for ratio in ratios)


# The line in which a job says what it thinks of new plans.


def why_replan(change: float, most: int, slow: Mapping[Worker, float], known: Collection[Worker]) -> str:
    """Reason to look for new plans."""
    words = [
        f"{worker_text(worker)} takes {by:.1f} times as long as its peers" for worker, by in slow.items()
    ]
    words += [
        f"{worker_text(worker)} is as fast as its peers again" for worker in sorted(set(known) - set(slow))
    ]
    return ", ".join(words) or f"op times have moved by {100 * change:.1f} % of a step, most on stage {most}"


def offers_text(offers: Collection[Offer], step: float, least: float, names: Mapping[Worker, Worker]) -> str:
    """Saving of each of them; `names` lead from cells to workers."""
    words = [f"{_plan_of(offer, names)} saves {100 * offer.saving:.1f} %" for offer in offers]
    return f"{', '.join(words)} of {step:.3g} s a step, {100 * least:.1f} % asked for"


def _word_for(variant: Variant) -> str:
    """If it is taken."""
    if variant.standby:
        return "taken, with a standby"
    return "taken, with a lighter load" if variant.lighter else "taken"


def _plan_of(offer: Offer, names: Mapping[Worker, Worker]) -> str:
    variant = offer.variant
    if offer.cut is not None:
        return f"layout {offer.cut.layout}"
    who = ", ".join(worker_text(names.get(cell, cell)) for cell in variant.standby or variant.lighter)
    if variant.standby:
        return f"a plan with {who} on standby"
    if variant.lighter:
        return f"a plan in which {who} has less to do"
    return "a new plan for all workers"
