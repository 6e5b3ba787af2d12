"""A new generation: the step to continue from, who moves, and the orders to each process.

Members are named by their cells in the grid of the current cut here; orders name them as users do.
`applied` counts the steps that a member's parameters have seen. No stage is ever more than one step ahead of
another. A step that waits for the norm is made when all have summed their gradients: if one has made it, the
others make it too, with the norm that is known. Of any other step the least of these counts is where all can
stand: who is one ahead undoes one step. The last step that all have may still lack its verdict, because the
sum of the norm broke off; then one who knows the sum tells it, or, if none does, what the processes had put
into it is added up here. Needs no torch.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment
from recycle_runtime.protocol.messages.checkpoints import CheckpointOrder
from recycle_runtime.protocol.messages.generations import Go, HeldState, LayerShards, Sums
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import Recovered


class Standing(NamedTuple):
    """Agreement of all workers before they continue: the step, those that undo one, donors of state."""

    step: int
    undo: frozenset[Member]
    """They are one step ahead."""
    donors: dict[Member, Member]
    """Donor from which each joiner gets its state."""
    sums: Sums | None
    """Of the step before `step`, for those who lack them."""


class StageGone(NamedTuple):
    """No live worker holds the parameters of these stages, or some shard of their optimizer state."""

    stages: tuple[int, ...]
    shard: str = ""
    """In words, where only a shard is lost."""


class CannotAgreeError(RuntimeError):
    """The reports contradict what the plans guarantee."""


def stand(
    reports: Mapping[Member, HeldState],
    stages: int,
    restorable: int | None = None,
    once: Collection[int] | None = None,
) -> Standing | StageGone:
    """The step to continue from. A fresh process can still read a checkpoint of step `restorable`.

    `once` are stages that hold every layer once; without it, all do.
    """
    if restorable is not None:
        whole = HeldState(restorable, is_fresh=False)
        reports = {member: whole if report.is_fresh else report for member, report in reports.items()}
    seasoned = {
        member: report.applied
        for member, report in reports.items()
        if report.applied is not None and not report.is_fresh
    }
    step = min(seasoned.values(), default=0)
    behind = [member for member, applied in seasoned.items() if applied == step]
    if _settled(reports, step + 1) is not None and all(reports[each].can_go_forward for each in behind):
        step += 1
    holders = _holders(reports, step)
    if odd := [member for member, applied in seasoned.items() if applied > step + 1]:
        raise CannotAgreeError(f"{_names(odd)} are more than one step ahead of step {step}")
    gone = tuple(stage for stage in range(stages) if not any(member.worker[1] == stage for member in holders))
    if gone:
        return StageGone(gone)
    donors: dict[Member, Member] = {}
    for member in reports:
        if member not in holders:
            donor = _donor(member, holders)
            if donor is None:
                return StageGone((member.worker[1],))
            donors[member] = donor
    if (lost := lost_shard({member: reports[member].shards for member in holders})) is not None:
        return lost
    undo = frozenset(member for member, applied in holders.items() if applied == step + 1)
    counted = {
        member: applied for member, applied in holders.items() if once is None or member.worker[1] in once
    }
    return Standing(step, undo, donors, _sums(reports, counted, step))


def _holders(reports: Mapping[Member, HeldState], step: int) -> dict[Member, int]:
    """Members with a state of their own that can be used, with the steps that it has seen."""
    return {
        member: report.applied
        for member, report in reports.items()
        if report.applied is not None and (step == 0 or not report.is_fresh)
    }


def _donor(member: Member, holders: Mapping[Member, int]) -> Member | None:
    """A peer with the same rank; the load of donors does not count, for copies are quick."""
    same = [
        other for other in holders if (other.worker[1], other.tp_rank) == (member.worker[1], member.tp_rank)
    ]
    return min(same, default=None)


def _sums(reports: Mapping[Member, HeldState], holders: Mapping[Member, int], step: int) -> Sums | None:
    if any(applied == step - 1 for applied in holders.values()):
        # They make the step before with the norm that others know.
        return _settled(reports, step)
    open_verdicts = {
        (member.worker[1], member.tp_rank): sums
        for member, applied in holders.items()
        if applied == step and (sums := reports[member].unsettled) is not None
    }
    if not open_verdicts:
        return None
    if (known := _settled(reports, step)) is not None:
        return known
    squares = sum(open_verdicts[key].squares for key in sorted(open_verdicts))
    return Sums(squares, sum(sums.not_finite for sums in open_verdicts.values()))


def lost_shard(holders: Mapping[Member, Sequence[LayerShards]]) -> StageGone | None:
    """One that none of the holders has; where there are several stages with a layer, any of them will do."""
    held: dict[tuple[int, int], set[int]] = {}
    counts: dict[tuple[int, int], tuple[int, int]] = {}
    for member, shards in sorted(holders.items()):
        for each in shards:
            place = each.layer, member.tp_rank
            held.setdefault(place, set()).update(each.held)
            counts.setdefault(place, (each.shards, member.worker[1]))
    for place, (count, stage) in sorted(counts.items()):
        if missing := sorted(set(range(count)) - held[place]):
            return StageGone((stage,), f"shard {missing[0]} of the optimizer state of layer {place[0]}")
    return None


def _settled(reports: Mapping[Member, HeldState], steps: int) -> Sums | None:
    """Sums of the last of so many steps, if known."""
    found = (each.settled for each in reports.values() if each.settled_steps == steps)
    return next((sums for sums in found if sums is not None), None)


def _names(members: list[Member]) -> str:
    return ", ".join(f"{place[0]}:{place[1]}" for place, _ in members)


class GenerationStart(NamedTuple):
    """A generation as it begins."""

    number: int
    standing: Standing
    assignment: Assignment
    roles: dict[Worker, Worker]
    """Of all cells, joiners among them."""
    workers: dict[Worker, Worker]
    """Worker in each cell."""
    joiners: frozenset[Worker]
    """They get their state while the other workers train."""
    restore: str | None
    """The checkpoint that every worker reads first."""
    steps: int
    """Of the whole run."""
    first_step: int
    """Step at which the run began; `first_item` is the number of its first micro-batch."""
    first_item: int
    spared: frozenset[Worker]
    """Cells in which injected faults wait."""
    grid: str
    """The roles of all, in the form that orders have."""
    takers: Mapping[Member, Sequence[Worker]]
    """Cells that get their state from a member."""
    check_peers: int = 0
    """Steps from one comparison of peers to the next; 0: never."""
    fewer: tuple[tuple[Worker, int], ...] = ()
    """Roles of workers that have lost ranks, and how many processes each of them has."""


def takers_of(standing: Standing) -> dict[Member, list[Worker]]:
    """Workers that get state, by their donor."""
    found: dict[Member, list[Worker]] = {}
    for to, donor in standing.donors.items():
        found.setdefault(donor, []).append(to.worker)
    return found


def go_order(start: GenerationStart, member: Member, checkpoint: CheckpointOrder | None) -> Go:
    """The order to begin, for one process by its cell: its role in the plan, and whose state goes where."""
    standing, joiners, workers = start.standing, start.joiners, start.workers
    donor = standing.donors.get(member)
    source = None if donor is None else workers[donor.worker]
    is_joining = member.worker in joiners
    takers = start.takers.get(member, ())
    return Go(
        generation=start.number,
        step=standing.step,
        bundle=start.assignment.bundle,
        plan=start.assignment.plan,
        role=start.roles[member.worker],
        grid=start.grid,
        sums=standing.sums,
        copy_from=None if is_joining else source,
        copy_to=tuple(workers[cell] for cell in takers if cell not in joiners),
        donor=source if is_joining else None,
        joiners=tuple(workers[cell] for cell in takers if cell in joiners),
        restore=start.restore,
        until=start.steps,
        is_spared=member.worker in start.spared,
        first_step=start.first_step,
        first_item=start.first_item,
        checkpoint=checkpoint,
        check_peers=start.check_peers,
        fewer=start.fewer,
    )


def possible_moves(
    moves: Mapping[Worker, Worker], reports: Mapping[Member, HeldState], new: Collection[Worker]
) -> Iterator[tuple[Member, Member]]:
    """Of the moves that were wanted those that can still be made, process by process: who becomes whom.

    A worker moves if it is there, has peers that keep the state of its stage and all shards that it owns, and
    the place is free: also not that of a `new` worker, which has not reported yet.
    """
    here = {member.worker for member in reports}
    for worker, place in moves.items():
        has_peer = any(other[1] == worker[1] and other != worker for other in here)
        if worker not in here or place in here or place in new or not has_peer:
            continue
        if not _can_spare(worker, here, reports):
            continue
        here.remove(worker)
        here.add(place)
        yield from ((member, Member(place, member.tp_rank)) for member in reports if member.worker == worker)


def _can_spare(worker: Worker, here: Collection[Worker], reports: Mapping[Member, HeldState]) -> bool:
    """True if others have every shard of optimizer state that a worker owns."""
    kept: set[tuple[int, int, int]] = set()
    owned: set[tuple[int, int, int]] = set()
    for member, report in reports.items():
        found = {(member.tp_rank, each.layer, shard) for each in report.shards for shard in each.held}
        if member.worker == worker:
            owned |= found
        elif member.worker in here:
            kept |= found
    return owned <= kept


@dataclass(slots=True)
class Recovery:
    """One change of generation; times in seconds of the machine's monotonic clock."""

    generation: int
    causes: list[str] = field(default_factory=list[str])
    began: float = 0.0
    """Time at which the coordinator learned of it."""
    fault_at: float | None = None
    """Time of the injected fault, if that is known."""
    left: float = 0.0
    """Time at which all had left the old group and reported their step."""
    going: float = 0.0
    """Time at which all run in the new group; 0 until then."""
    step: int = 0
    """Step from which training goes on."""
    undone: int = 0
    """Count of workers that took a step back."""
    repeated: float = 0.0
    """Seconds of training that are run again."""
    plan: str = ""
    reason: str = ""
    """The error of the first worker whose own work failed."""

    def told(self) -> Recovered:
        """Message to observers about the change, with the time of each phase."""
        start = self.began if self.fault_at is None else self.fault_at
        return Recovered(
            generation=self.generation,
            causes=tuple(self.causes),
            step=self.step,
            undone=self.undone,
            repeated=self.repeated,
            plan=self.plan,
            detection=round(self.began - start, 6),
            leaving=round(self.left - self.began, 6),
            regroup=round(self.going - self.left, 6),
            total=round(self.going - start, 6),
        )
