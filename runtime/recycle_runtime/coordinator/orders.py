"""What members are told when a generation begins. Standard library only."""

from typing import NamedTuple

from recycle_runtime.coordinator.decision import Standing
from recycle_runtime.coordinator.outbox import Outbox
from recycle_runtime.coordinator.roster import Roster
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment
from recycle_runtime.protocol.messages import CheckpointOrder, Go, Member, Move, Report


class Start(NamedTuple):
    """A generation as it begins."""

    number: int
    standing: Standing
    assignment: Assignment
    roles: dict[Worker, Worker]
    """Of everybody, those who only watch among them."""
    learners: frozenset[Worker]
    """They get their state while the others train."""
    restore: str | None
    """The checkpoint that everybody reads first."""
    until: int
    """The last step."""
    first_step: int
    first_item: int
    spared: frozenset[Worker]
    """Workers whose injected faults wait."""


def go_order(start: Start, member: Member, checkpoint: CheckpointOrder | None) -> Go:
    """The order to begin, for one member: its role in the plan, and whose state goes where."""
    standing, learners = start.standing, start.learners
    donor = standing.donors.get(member)
    source = None if donor is None else donor.worker
    is_learning = member.worker in learners
    takers = [to.worker for to, other in standing.donors.items() if other == member]
    return Go(
        generation=start.number,
        step=standing.step,
        bundle=start.assignment.bundle,
        plan=start.assignment.plan,
        role=start.roles[member.worker],
        grid=tuple(sorted(start.roles.values(), key=lambda role: (role[1], role[0]))),
        sums=standing.sums,
        copy_from=None if is_learning else source,
        copy_to=tuple(worker for worker in takers if worker not in learners),
        donor=source if is_learning else None,
        joiners=tuple(worker for worker in takers if worker in learners),
        restore=start.restore,
        until=start.until,
        is_spared=member.worker in start.spared,
        first_step=start.first_step,
        first_item=start.first_item,
        checkpoint=checkpoint,
    )


def carry_out(
    moves: dict[Worker, Worker], roster: Roster, outbox: Outbox
) -> tuple[frozenset[Worker], dict[Member, Report]]:
    """Make the moves that can still be made: the places taken, and what everybody holds for its stage now."""
    reports = roster.reports()
    taken: set[Worker] = set()
    for worker, place in moves.items():
        parts = [member for member in reports if member.worker == worker]
        peers = [member for member in reports if member.worker[1] == worker[1] and member.worker != worker]
        if not parts or not peers or any(member.worker == place for member in reports):
            continue
        taken.add(place)
        for member in parts:
            target = Member(place, member.tp_rank)
            outbox.order(member, Move(place))
            outbox.moved(member, target)
            del reports[member]
            entry = roster.entries.pop(member)
            entry.report = reports[target] = Report(None, is_fresh=False)
            roster.entries[target] = entry
    return frozenset(taken), reports
