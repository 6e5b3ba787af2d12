"""What members are told when a generation begins. Standard library only."""

from typing import NamedTuple

from recycle_runtime.coordinator.decision import Member, Report, Standing
from recycle_runtime.coordinator.outbox import Message, Outbox
from recycle_runtime.coordinator.roster import Roster
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment


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


def go_order(start: Start, member: Member) -> Message:
    """The order to begin, for one member: its part in the plan, and whose state goes where."""
    standing, learners = start.standing, start.learners
    donor = standing.donors.get(member)
    source = None if donor is None else list(donor.place)
    is_learning = member.place in learners
    takers = [to.place for to, other in standing.donors.items() if other == member]
    grid = sorted(start.roles.values(), key=lambda role: (role[1], role[0]))
    return {
        "type": "go",
        "generation": start.number,
        "step": standing.step,
        "bundle": start.assignment.bundle,
        "plan": start.assignment.plan,
        "role": list(start.roles[member.place]),
        "grid": [list(role) for role in grid],
        "sums": None if standing.sums is None else list(standing.sums),
        "from": None if is_learning else source,
        "to": [list(place) for place in takers if place not in learners],
        "learn": source if is_learning else None,
        "teach": [list(place) for place in takers if place in learners],
        "restore": start.restore,
    }


def carry_out(
    moves: dict[Worker, Worker], roster: Roster, outbox: Outbox
) -> tuple[frozenset[Worker], dict[Member, Report]]:
    """Make the moves that can still be made: the places taken, and what everybody holds for its stage now."""
    reports = roster.reports()
    taken: set[Worker] = set()
    for worker, place in moves.items():
        parts = [member for member in reports if member.place == worker]
        peers = [member for member in reports if member.place[1] == worker[1] and member.place != worker]
        if not parts or not peers or any(member.place == place for member in reports):
            continue
        taken.add(place)
        for member in parts:
            target = Member(place, member.part)
            outbox.order(member, {"type": "place", "place": list(place)})
            outbox.moved(member, target)
            del reports[member]
            entry = roster.entries.pop(member)
            entry.report = reports[target] = Report(None, is_fresh=False)
            roster.entries[target] = entry
    return frozenset(taken), reports
