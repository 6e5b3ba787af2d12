"""The members of a job: who is here or expected, where each works, and what each holds. Needs no torch."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, is_copy
from recycle_runtime.coordinator.cells import Cells
from recycle_runtime.coordinator.layer_move import LayerMove, cells_of
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.coordinator.participant import NewGeneration
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.regrouping import lost_shard, possible_moves
from recycle_runtime.experts.placement import lack_of_slots
from recycle_runtime.plan.moves import Moves, least_moves
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.plan.recut import NOTHING
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.protocol.messages.generations import HeldState, LeftGroup, ShardsHeld
from recycle_runtime.protocol.messages.members import Member

_LOST = HeldState(None, is_fresh=False)


class Members:
    """State derived from the roster, the cells, and the start of the run."""

    def __init__(self, roster: Roster, cells: Cells, expected: Iterable[Worker], begins: Beginning) -> None:
        self.roster, self.cells, self.begins = roster, cells, begins
        self.expected = set(expected)
        """Workers that have not joined yet, in the beginning."""
        self.restore = begins.checkpoint
        """The checkpoint that the run begins with, until every worker has read it."""
        self.moves: dict[Worker, Worker] = {}
        """Places of failed workers that others are to move to at the next change."""
        self.has_bad_copy = False
        """The run was to begin with a copy in memory, and workers could not."""

    # Who is here.

    @property
    def known(self) -> list[Worker]:
        """All who are here, or will come before the first step."""
        return [*self.roster.whole(), *self.expected]

    @property
    def are_on_their_way(self) -> bool:
        """True if some wait for their state, or arrive and will be given a cell."""
        return any(
            entry.is_joining or (not entry.is_active and self.cells.has_room(member.worker))
            for member, entry in self.roster.entries.items()
        )

    def are_gathered(self, generation: int, *, with_new: bool) -> bool:
        """True if all have reported that are waited for, and somebody has."""
        has_all = not self.expected and self.roster.have_reported(generation, with_new=with_new)
        return has_all and bool(self.roster.reported(generation))

    @property
    def have_plan(self) -> bool:
        """True if there is a plan for all who are here or on the way."""
        here = [self.cells.of(worker) or worker for worker in self.roster.whole()]
        return self.cells.book.assign([*here, *self.expected]) is not None

    def moves_to_a_plan(self, generation: int) -> Moves:
        """Of workers that are all here, so that failures lie where there is a plan for as many; none if that
        cannot be done."""
        if not self.cells.is_plain or not self.are_gathered(generation, with_new=False):
            return {}
        live, book = self.roster.whole(), self.cells.book
        failed = book.counts(live)
        best = book.best_placement(sum(failed))
        if best is None or book.pipelines in failed or self.lack_of_slots(best.counts) is not None:
            return {}
        return least_moves(live, best.counts, book.pipelines, book.standby)

    def late(
        self, waited: float, patience: Patience, can_go_on_with: Callable[[Collection[Worker]], bool]
    ) -> list[Worker]:
        """Workers that should have left their group by now; those who cannot be spared get longer."""
        late = self.roster.late() if waited > patience.leaving else []
        if not late:
            return []
        # One that is late itself may never come.
        if can_go_on_with([worker for worker in self.roster.whole() if worker not in late]):
            return [worker for worker in late if waited > self._leaving_seconds(worker, patience)]
        return late if waited > patience.last_leaving else []

    def _leaving_seconds(self, worker: Worker, patience: Patience) -> float:
        ranks = (entry for member, entry in self.roster.entries.items() if member.worker == worker)
        has_stepped = all(entry.has_stepped for entry in ranks)
        return patience.leaving if has_stepped else patience.first_step

    # Stages that have nobody.

    def empty_stages(self) -> list[int]:
        """Those at which nobody works any more, unless a group of pipelines can go on alone."""
        return [] if self._group_left() is not None else self.cells.empty_stages(self.known)

    def _group_left(self) -> tuple[PlanBook, int] | None:
        """Plans under which another group goes on alone where a stage of a group has no worker, and the first
        stage of that group. None if no stage is without workers, or no group can go on."""
        if not (self.cells.book.groups and self.cells.empty_stages(self.known)):
            return None
        return self.cells.alone(self.roster.whole())

    def go_on_alone(self) -> None:
        """A group whose workers are all that is needed; others hold nothing of use, and join again."""
        if (found := self._group_left()) is None:
            return
        book, first = found
        stages = {worker: stage - first for (_, stage), worker in self.cells.workers().items()}
        here = {worker: stage for worker, stage in stages.items() if 0 <= stage < book.stages}
        self.cells.switch(book, cells_of(here))
        for member, entry in self.roster.entries.items():
            if member.worker not in here:
                entry.hold_nothing()

    def lack_of_slots(self, failed: Sequence[int]) -> str | None:
        """Reason why slots are too few for the experts of a stage, with so many failures on each; None: they
        are enough, as far as is known."""
        return self.lack_under(self.cells.book, [self.cells.book.pipelines - count for count in failed])

    def lack_under(self, book: PlanBook, workers: Sequence[int]) -> str | None:
        """The same under any cut, with so many workers on each stage."""
        for stage, count in enumerate(workers) if book.slots else ():
            if (lack := lack_of_slots(self._experts(book, stage), [book.slots] * count)) is not None:
                return f"on stage {stage}, {lack}"
        return None

    def _experts(self, book: PlanBook, stage: int) -> int:
        """In the mixture of a stage that has most of them, as far as workers have told."""
        first, past = book.ranges[stage] if book.ranges else NOTHING
        told = ((member, each) for member, entry in self.roster.entries.items() for each in entry.experts)
        here = (
            each.experts
            for member, each in told
            if (
                self.cells.stage(member.worker) == stage if each.layer is None else first <= each.layer < past
            )
        )
        return max(here, default=0)

    # What they hold.

    def may_be_ahead(self) -> bool:
        """True if somebody may have made a step, reported or not: who is left has made it then, and
        nobody can make it again."""
        if self.restore is not None:
            # While all still have to read a checkpoint, whoever is ahead of it undoes a step.
            return False
        return any(entry.may_be_ahead(self.begins.step) for entry in self.roster.entries.values())

    def refuse_copy(self) -> bool:
        """Workers cannot begin with what they have read: True if that was a copy in memory."""
        self.has_bad_copy = self.restore is not None and is_copy(self.restore)
        return self.has_bad_copy

    def hold_all(self, workers: Collection[Worker]) -> bool:
        """True if these hold, for all that is known, all there is of every stage, or of every stage of a
        group; one that joins holds nothing yet."""
        holders = {one for one in workers if self.roster.has_state(one)}
        if not self.cells.book.has_shards:
            return self.cells.are_enough(holders)
        entries = {member: entry for member, entry in self.roster.entries.items() if member.worker in holders}
        silent = {member.worker for member, entry in entries.items() if entry.shards is None}
        shards = {member: entry.shards for member, entry in entries.items() if entry.shards is not None}
        return self.cells.are_enough(holders - silent) and lost_shard(shards) is None

    def fewer_ranks(self) -> tuple[int, ...] | None:
        """Numbers of ranks with which a worker can go on that has lost some, the most first; none in a job
        that divides optimizer state. None: not known yet."""
        return () if self.cells.book.has_shards else self.roster.fewer_ranks()

    def left(self, member: Member, said: LeftGroup) -> None:
        """A process has left its group, or has none yet."""
        entry = self.roster.entries[member]
        entry.report = _LOST if entry.is_outdated else said.report
        entry.others = (_LOST,) * len(said.others) if entry.is_outdated else said.others
        entry.fewer_ranks, entry.experts = said.ranks, said.experts
        entry.generation, entry.is_leaving = said.generation, False
        if not entry.is_active:
            # Said again, it is older than what a worker that trains has said of its shards.
            entry.shards = entry.report.shards

    def have_shards(
        self, member: Member, said: ShardsHeld, is_current: Callable[[Member, int], bool]
    ) -> None:
        """A process says which shards of optimizer state it holds."""
        entry = self.roster.entries.get(member)
        if entry is not None and said.generation >= entry.generation:
            entry.shards = said.shards
        if entry is not None and said.sizes is not None and is_current(member, said.generation):
            entry.shard_sizes = {
                (each.layer, shard): size
                for each, sizes in zip(said.shards, said.sizes, strict=True)
                for shard, size in zip(each.held, sizes, strict=True)
            }

    def reports_by_cell(self, generation: int) -> dict[Member, HeldState]:
        """Of every rank of all who have reported. Where a worker has fewer processes than ranks, all ranks of
        one that needs a state get it from the same donor."""
        reports = {
            Member(cell, each.tp_rank): held
            for member, report in self.roster.reports(generation).items()
            if (cell := self.cells.of(member.worker)) is not None
            for each, held in self.roster.of_ranks(member, self._holds(member, report)).items()
        }
        if not self.roster.fewer:
            return reports
        without = {member.worker for member, report in reports.items() if report.applied is None}
        return {member: _LOST if member.worker in without else held for member, held in reports.items()}

    def _holds(self, member: Member, report: HeldState) -> HeldState:
        """State that a process reports under this cut, with the layers it was sent, until it has begun."""
        entry, cell = self.roster.entries[member], self.cells.of(member.worker)
        has_layers, ranges = entry.has_layers and report.layers_applied is not None, self.cells.book.ranges
        shards = (*report.shards, *(entry.taken if has_layers else ()))
        if ranges and cell is not None:
            # Those of other layers go when it changes its cut.
            first, past = ranges[cell[1]]
            shards = tuple(each for each in shards if first <= each.layer < past)
        if has_layers and report.is_fresh:
            report = HeldState(report.layers_applied, is_fresh=False)
        return report._replace(shards=shards)

    # From one generation to the next.

    def make_moves(self, generation: int) -> list[tuple[Member, Member]]:
        """Those that were wanted and can still be made, process by process: who becomes whom."""
        moves, self.moves = self.moves, {}
        made = list(possible_moves(moves, self.roster.reports(generation), self.roster.new()))
        for member, target in made:
            self.roster.rename(member, target).report = _LOST
            self.cells.drop(member.worker)
            self.cells.put({target.worker: target.worker})
        return made

    def switch_cut(self, move: LayerMove) -> None:
        """From here on the new cut counts."""
        self.cells.switch(move.book, move.cells)
        joiners = move.joiners(self.roster.entries)
        for member, entry in self.roster.entries.items():
            entry.has_layers, entry.has_stepped = member in joiners, False
            entry.taken = move.shards_for(member.worker)
            if member.worker not in move.cells:
                # What it holds is of no use under the new cut.
                entry.hold_nothing()

    def generation(self, number: int, step: int, working: Sequence[Member]) -> NewGeneration:
        """A new one, in which these work."""
        book, last = self.cells.book, self.cells.book.loss_stages
        with_loss = frozenset(
            member for member in working if member.tp_rank == 0 and self.cells.stage(member.worker) in last
        )
        # Where groups hold all layers, the stages are those of the first.
        stages = {worker: cell[1] for cell, worker in self.cells.workers().items() if cell[1] in book.once}
        return NewGeneration(number, step, working, with_loss, stages, book.has_shards)

    def told_fewer(self, roles: Mapping[Worker, Worker]) -> tuple[tuple[Worker, int], ...]:
        """Roles of workers that have lost ranks, and how many processes each of them has."""
        cells = {worker: cell for cell, worker in self.cells.workers().items()}
        fewer = [(worker, ranks) for worker, ranks in sorted(self.roster.fewer.items()) if worker in cells]
        return tuple((roles[cells[worker]], ranks) for worker, ranks in fewer if cells[worker] in roles)
