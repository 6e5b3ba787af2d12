"""Which plan the job should run next, and on which workers: re-cuts, moves, plans for measured op times.

Each is a `plan.change.JobChange`, weighed once enough steps of a generation have been seen, and told in one
line, whatever comes of it. Nothing is considered while a change is under way. A job that can be cut anew
moves layers, any other moves workers. Needs no torch.
"""

from collections.abc import Collection, Mapping
from statistics import median

from recycle_runtime.coordinator.drift import SmoothedTimes, calibrated, measured_times, shift
from recycle_runtime.coordinator.events import MovesWanted, RecutWanted, StopWanted
from recycle_runtime.coordinator.journal import Lines
from recycle_runtime.coordinator.layer_move import LayerMove
from recycle_runtime.coordinator.measured_job import JobText, StageTimes
from recycle_runtime.coordinator.plans import PlanFiles
from recycle_runtime.coordinator.recovery import Recovery
from recycle_runtime.coordinator.recutting import Recutting
from recycle_runtime.coordinator.replanning import (
    InUse,
    Offer,
    Replanner,
    best_offer,
    offers_text,
    outcome_text,
    why_replan,
)
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import (
    STEPS_BEFORE_FURTHER_MOVES,
    STEPS_BEFORE_MOVES,
    ChangeRate,
    CostOfMoves,
    Counts,
    least_moves,
    moves_text,
)
from recycle_runtime.plan.plan_book import Assignment, Fitted, PlanBook, workers_of
from recycle_runtime.protocol.messages.generations import Began
from recycle_runtime.protocol.messages.layer_moves import LayersArrived
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEvent
from recycle_runtime.protocol.messages.steps import StepDone, StepRow

Wish = StopWanted | MovesWanted | RecutWanted | JobEvent
"""What should be done about it, or be told."""

_ROWS_FOR_PLANS = 10
"""Steps of a generation before anything is considered; the first of them is warm-up."""
_ROWS_BETWEEN_LOOKS = 5
_ROWS_KEPT = 21
_SLOW = 1.5
"""A worker that takes so many times longer than its peers is slow."""
_STILL_SLOW = 1.25
"""The same for one that was slow already."""
_TOO_SLOW = 2.0
"""No worker moves while some worker is this slow."""
_OTHER_PACE = 1.3
"""A slow worker whose factor has changed by so much needs another plan."""
_MOST_PATIENCE = 64


class Adaptation:
    """Listens to a job, and says where it pays to change it, with a line for whatever is weighed."""

    def __init__(
        self, book: PlanBook, options: AdaptationOptions, replanner: Replanner, files: PlanFiles
    ) -> None:
        self.book, self._options, self._files = book, options, files
        self.rate = ChangeRate(options.mtbf)
        self.costs = CostOfMoves()
        self.ops = SmoothedTimes()
        self._job = JobText(self.book.bundles[0].job_text)
        for stage in range(self.book.stages):
            self.costs.state_bytes[stage] = self._job.parameter_bytes(stage)
        self._recutting = Recutting(self.book, options.recut, files.notes)
        self._has_said_why_not = False
        self._here: PlanBook | None = None
        """The plans of the current cut, once a generation has begun."""
        self._cells: dict[Worker, Worker] = {}
        """Where each worker stands in its grid; op times are those of cells."""
        self._replanner = replanner
        self._rows: list[float] = []
        self._seen = 0
        """Rows of this generation."""
        self._compared_at, self._has_slow = -1, False
        """After how many of them workers were compared with their peers."""
        self._look_at = _ROWS_FOR_PLANS
        self._period = 0
        """Ticks of the plan of this generation."""
        self._pace: float | None = None
        """Seconds of a tick, by the steps of an earlier generation."""
        self._live: frozenset[Worker] = frozenset()
        self._weighed: Counts | None = None
        """Where failures should lie, when moves to there were last thought of."""
        self._copying = 0.0
        self._tick: float | None = None
        self._asked_at = -options.replan_every
        self._patience = 1
        """Intervals after which the same is asked for once more, if nothing has come of it."""
        self._asked_for: StageTimes | None = None
        self._about = ""
        self._slow: dict[Worker, float] = {}
        self._back_from: dict[Worker, tuple[int, int]] = {}
        """For standbys that are slow: the step from which on they may work again, and how
        long they had to wait for that."""

    # What the job tells.

    def hear(self, member: Member, message: object) -> None:
        """A process has said something, perhaps something that was measured."""
        match message:
            case StepDone():
                self.measured(member, message.times)
            case Began():
                self.began(member, message)
            case LayersArrived():
                self.costs.copied(*message.copied)
            case _:
                pass

    def measured(self, member: Member, times: Mapping[str, float]) -> None:
        """Seconds of a worker's ops; its ranks wait for each other, so one speaks for all."""
        cell = self._cells.get(member.worker)
        if member.tp_rank == 0 and cell is not None:
            self.ops.add(cell, times)

    def began(self, member: Member, said: Began) -> None:
        """A process runs in a new generation: what it holds, and what it had to copy for that."""
        stage, copied = member.worker[1], said.copied
        self.costs.state_bytes[stage] = max(self.costs.state_bytes.get(stage, 0), said.state_bytes)
        if member.tp_rank == 0:
            self._recutting.began(said.first_layer, said.layer_bytes, can_halve=said.can_halve)
        if copied is not None:
            self.costs.copied(*copied)
            self._copying = max(self._copying, copied.seconds)

    @property
    def may_recut(self) -> bool:
        """Whether the job can be cut anew while it runs."""
        return self._recutting.is_considered

    def recall(self, lines: Lines) -> None:
        """What the coordinator before this one knew of layers."""
        for layer_bytes in lines.values("layer_bytes")[-1:]:
            self._recutting.recall(layer_bytes)

    def move_ended(self, why: str | None) -> None:
        """Layers have travelled, or will not."""
        self._recutting.ended(why, self._seen)
        for book in self.book.family:
            if why is not None and book is not self._here:
                # It was for workers in cells where they do not come to stand.
                book.fitted = None

    def generation(self, assignment: Assignment, cells: Mapping[Worker, Worker]) -> None:
        """A new generation has been ordered; `cells` are those of its workers."""
        live = frozenset(cells.values())
        if self._live and len(live) != len(self._live):
            self.rate.change()
        if live != self._live:
            self._patience, self._asked_for = 1, None
        self._live = live
        self._stand(self.book.with_bundle(assignment.bundle), assignment, cells)
        self._recutting.generation()
        for cell in self._idle(assignment):
            # What it will do there is all that it is judged by.
            self.ops.forget(cell)
        self._replanner.stop()
        if self._seen >= STEPS_BEFORE_MOVES and self._period:
            self._pace = median(self._rows) / self._period
        self._period = assignment.period
        self._rows, self._seen, self._look_at, self._copying = [], 0, _ROWS_FOR_PLANS, 0.0
        self._compared_at = -1
        self._weighed = None

    def _stand(self, here: PlanBook, assignment: Assignment, cells: Mapping[Worker, Worker]) -> None:
        """What was measured counts for a worker that stays where it is."""
        if here is not self._here and self._here is not None:
            self.ops.keep(())
            self._slow, self._back_from, self._asked_for = {}, {}, None
            self._files.forget_slow_workers(here, assignment.bundle)
        before = {cell: worker for worker, cell in self._cells.items()}
        for worker, cell in cells.items():
            if before.get(cell, worker) != worker:
                self.ops.forget(cell)
        self.ops.keep(cells.values())
        self._here, self._cells = here, dict(cells)
        if here.fitted == assignment.bundle:
            self._slow = dict(here.slow_in(assignment))

    def recovered(self, recovery: Recovery, now: float) -> None:
        """Every worker runs in it."""
        self.rate.begin(now)
        if recovery.causes != ["start"]:
            # To leave takes longer after a failure than between two steps, where next time it will happen.
            self.costs.regrouped(recovery.going - recovery.left, self._copying)

    def moved(self, worker: Worker, place: Worker) -> None:
        self.ops.forget(worker)
        self.ops.forget(place)

    def row(self, row: StepRow) -> None:
        """A step has been made."""
        self._seen += 1
        if self._seen > 1:
            self._rows = [*self._rows, row.seconds][-_ROWS_KEPT:]

    def turn(self, job: StateMachine, now: float, *, is_planning: bool) -> list[Wish]:
        """Now and then; nothing is begun while a plan for the failures is being made."""
        if wishes := self._take_offers(job, now):
            return wishes
        if not job.is_steady or job.move is not None:
            return []
        wishes: list[Wish] = []
        if not (self._has_slow_workers() or self._is_made_for_slow_workers(job)):
            # What is better is judged as if all were equally fast.
            step = self._step if self._seen >= self._steps_before_moves else 0.0
            wishes += self._recutting.turn(job, self._seen, self.costs, self._outlook(job, now, step))
            wishes = wishes or ([] if is_planning else self._moves(job, now))
        if wishes or is_planning:
            return wishes
        if self._seen >= self._look_at and not self._replanner.is_busy:
            self._look_at = self._seen + _ROWS_BETWEEN_LOOKS
            if self._job.has_one_chunk_each:
                self._consider_plans(job)
            elif self._options.replan is not None and not self._has_said_why_not:
                self._has_said_why_not = True
                what = "plans for measured op times"
                return [JobEvent(f"{what} are made where every worker holds one chunk only")]
        return []

    def _has_slow_workers(self) -> bool:
        """As of the last step of all."""
        if self._compared_at != self._seen:
            self._compared_at, self._has_slow = self._seen, bool(self.ops.slow(self._live, _TOO_SLOW))
        return self._has_slow

    def _is_made_for_slow_workers(self, job: StateMachine) -> bool:
        """Whether the plan in use is for workers that are still slow, for all that is known."""
        known = {} if job.assignment is None else job.book.slow_in(job.assignment)
        factors = (self.ops.factor(cell) for cell in known)
        return any(factor is None or factor >= _STILL_SLOW for factor in factors)

    def _moves(self, job: StateMachine, now: float) -> list[Wish]:
        """Of whole workers; a job that can be cut anew moves layers instead."""
        if self._recutting.is_considered or not job.cells.is_plain or self._seen < self._steps_before_moves:
            return []
        if not job.is_settled:
            # Somebody is on the way, and has the place that others would move to.
            return []
        best = self.book.best_placement(sum(self.book.counts(self._live)))
        if best is None or best.counts == self._weighed:
            return []
        self._weighed = best.counts
        return self._weigh_moves(job, now, best.counts, best.period)

    def stop(self) -> None:
        self._replanner.stop()

    # Moves.

    def _weigh_moves(self, job: StateMachine, now: float, wanted: Counts, period_after: int) -> list[Wish]:
        failed = self.book.counts(self._live)
        period = self._comparable_period(job.assignment)
        if not sum(failed) or wanted == failed or period is None:
            return []
        moves = least_moves(self._live, wanted, self.book.pipelines, self.book.standby)
        outlook = self._outlook(job, now, self._step)
        change = JobChange(
            moves_text(moves), "moved", outlook, 1 - period_after / period, self.costs.of(moves)
        )
        told = JobEvent(str(change))
        return [told, MovesWanted(moves)] if change.pays else [told]

    def _comparable_period(self, assignment: Assignment | None) -> int | None:
        """Of the plan in use, or one for the same failures, with the times of the job as it was compiled."""
        if assignment is None:
            return None
        original = self.book.bundles[0].job_text
        if self.book.bundles[assignment.bundle].job_text == original:
            return assignment.period
        return self.book.period(self.book.counts(self._live), original)

    # Plans for measured op times.

    def _consider_plans(self, job: StateMachine) -> None:
        assignment, least = job.assignment, self._options.replan
        now, every = job.rows.next, self._options.replan_every
        if least is None or assignment is None or not assignment.is_exact or now < self._asked_at + every:
            return
        book = job.book
        if book.groups:
            # Op times are told by stage, and its jobs have them by chunk.
            return
        planned = self._job if book.is_own else JobText(book.first.job_text)
        self._tick = self._tick or calibrated(planned, self.ops)
        times = None if self._tick is None else measured_times(planned, self.ops, self._tick)
        if times is None:
            return
        in_use = JobText(book.bundles[assignment.bundle].job_text)
        change, most = shift(in_use.times, times, planned.microbatches)
        idle, lighter = self._idle(assignment), book.slow_in(assignment)
        known = idle | lighter.keys()
        slow = self._slow_workers(idle, known, now)
        if set(slow) == self._slow.keys() and not self._is_news(times, least, now):
            return
        if change < least and set(slow) == known and _are_as_slow(slow, lighter):
            return
        self._asked_at, self._asked_for, self._slow = now, times, slow
        names = self._names
        named = {names[cell]: by for cell, by in slow.items()}
        self._about = why_replan(change, most, named, [names[cell] for cell in known])
        gone = [cell for cell in book.grid if cell not in self._live]
        text = self._job.with_times(times, planned)
        plan = self._in_use(assignment, {cell: by for cell, by in slow.items() if cell not in idle})
        may_recut = self._job.is_in_layers and self._recutting.can_move_layers
        source = self._files.first.job_source if may_recut else ""
        self._replanner.ask(text, plan, book, gone, slow, may_be_lighter=self._job.is_adaptive, source=source)

    def _in_use(self, assignment: Assignment, slow: Mapping[Worker, float]) -> InUse:
        """The plan of now; those of other cuts that came with the job have no file of their own yet."""
        bundle = self.book.bundles[assignment.bundle]
        is_recut = 0 < assignment.bundle <= len(self.book.first.recuts)
        path = self._replanner.file_of(bundle) if is_recut else self._files.paths[assignment.bundle]
        roles = {assignment.roles[cell]: by for cell, by in slow.items()}
        return InUse(path, bundle.plans[assignment.plan].failed, roles)

    @property
    def _names(self) -> dict[Worker, Worker]:
        """From cells to workers."""
        return {cell: worker for worker, cell in self._cells.items()}

    def _idle(self, assignment: Assignment) -> set[Worker]:
        """The standbys."""
        failed = self.book.bundles[assignment.bundle].plans[assignment.plan].failed
        return {place for place, role in assignment.roles.items() if role in failed}

    def _is_news(self, times: StageTimes, least: float, now: int) -> bool:
        """Whether what was asked for and not taken should be asked for again."""
        if self._asked_for is None or now >= self._asked_at + self._options.replan_every * self._patience:
            return True
        return shift(self._asked_for, times, self._job.microbatches)[0] >= least

    def _slow_workers(
        self, idle: Collection[Worker], known: Collection[Worker], now: int
    ) -> dict[Worker, float]:
        """Those who are slow; a standby counts as slow until it has seemed well for long enough."""
        slow = self.ops.slow(self._live - set(known), _SLOW) | self.ops.slow(known, _STILL_SLOW)
        for worker in idle:
            if now < self._back_from.get(worker, (0, 0))[0]:
                slow.setdefault(worker, self._slow.get(worker, _SLOW))
        return slow

    def _take_offers(self, job: StateMachine, now: float) -> list[Wish]:
        offers = self._replanner.made()
        if offers is None and not self._replanner.error:
            return []
        if offers is None:
            error, self._replanner.error = self._replanner.error, ""
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            return [JobEvent(f"{self._about}: no plan for measured op times: {error}")]
        least = self._options.replan
        assert least is not None
        best = best_offer(offers, least)
        # A plan for measured times stays of use when workers change.
        outlook = Outlook(self._step, float("inf"), job.steps - job.rows.next)
        if (
            best is not None
            and not JobChange("a plan", "taken", outlook, best.saving, self.costs.regroup).pays
        ):
            best = None
        if not job.is_steady:
            best = None
        offered = offers_text(offers, self._step, least, self._names)
        recut = next((offer for offer in offers if offer.cut is not None), None)
        weighed = [] if recut is None else self._weigh_cut(recut, best, job, now)
        if any(isinstance(wish, RecutWanted) for wish in weighed):
            return [JobEvent(f"{self._about}: {offered}: {outcome_text(recut)}"), *weighed]
        told = JobEvent(f"{self._about}: {offered}: {outcome_text(best)}")
        if best is None:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            return [told, *weighed]
        self._use(best, job.book, job.rows.next)
        return [told, *weighed, StopWanted("a plan for measured op times")]

    def _weigh_cut(self, offer: Offer, other: Offer | None, job: StateMachine, now: float) -> list[Wish]:
        """Another cut for slow workers, if it saves enough beyond the best plan of this one; what is weighed
        is what it saves beyond that."""
        least, cut = self._options.replan, offer.cut
        left = 1 - (other.saving if other is not None else 0.0)
        saving = 1 - (1 - offer.saving) / left
        if cut is None or least is None or saving < least or not job.is_settled:
            return []
        for path, bundle in cut.plans:
            self._files.add(path, bundle)
        slowest = sorted(self._slow, key=lambda cell: (-self._slow[cell], cell))
        names, counts = self._names, workers_of(offer.bundle)
        places = {names[cell]: place for cell, (place, _) in zip(slowest, cut.slow, strict=True)}
        book = next((book for book in self.book.family if book.is_of(offer.bundle)), None)
        way = None if book is None else self._recutting.way_to(job, book, counts, places)
        if book is None or way is None:
            return []
        outlook = self._outlook(job, now, left * self._step)
        told, moving = self._recutting.weigh(way, cut.layout, saving, outlook, self.costs)
        if moving is None:
            return [told]
        self._patience, self._asked_for = 1, None
        live = frozenset((rank, stage) for stage, count in enumerate(counts) for rank in range(count))
        self._files.fit(offer.candidate.path, offer.bundle, Fitted(live, dict(cut.slow)))
        move = LayerMove(book, way, book.layout(counts), moving, places)
        return [told, RecutWanted(move)]

    def _use(self, best: Offer, book: PlanBook, now: int) -> None:
        """From the next change on."""
        self._patience, self._asked_for = 1, None
        standby = frozenset(best.candidate.standby)
        for worker in standby - book.standby:
            _, waited = self._back_from.get(worker, (0, self._options.replan_every // 2))
            self._back_from[worker] = (now + 2 * waited, 2 * waited)
        if best.candidate.lighter:
            made_for = Fitted(self._live, dict(best.candidate.lighter))
            self._files.fit(best.candidate.path, best.bundle, made_for)
        else:
            self._files.unfit()
            self._files.add(best.candidate.path, best.bundle)
        self._files.keep_on_standby(standby, book)

    def _outlook(self, job: StateMachine, now: float, step: float) -> Outlook:
        """`step` in seconds, 0 as long as it is not known."""
        return Outlook(step, self.rate.seconds(now), job.steps - job.rows.next)

    @property
    def _step(self) -> float:
        """Seconds."""
        if self._seen < STEPS_BEFORE_MOVES and self._pace is not None:
            return self._pace * self._period
        return median(self._rows) if self._rows else 0.0

    @property
    def _steps_before_moves(self) -> int:
        return STEPS_BEFORE_MOVES if self._pace is None else STEPS_BEFORE_FURTHER_MOVES


def _are_as_slow(slow: Mapping[Worker, float], planned: Mapping[Worker, float]) -> bool:
    """Whether those who have less to do are about as slow as their plan has it."""
    ratios = [slow[worker] / by for worker, by in planned.items()]
    return all(1 / _OTHER_PACE < ratio < _OTHER_PACE for ratio in ratios)
