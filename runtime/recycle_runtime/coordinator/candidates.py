"""Candidates: changes of a running job, each in the same form, and the source of those that move workers.

Sources propose and do nothing else; `reconfiguration` weighs. Needs no torch.
"""

from collections.abc import Callable
from typing import NamedTuple

from recycle_runtime.coordinator.events import MovesWanted, RecutWanted, StopWanted
from recycle_runtime.coordinator.state_machine import StateMachine
from recycle_runtime.plan.change import JobChange, Outlook
from recycle_runtime.plan.moves import CostOfMoves, least_moves, moves_text

Wish = StopWanted | MovesWanted | RecutWanted


class Situation(NamedTuple):
    """A running job as the sources of candidates see it."""

    job: StateMachine
    rows: int
    """Steps of this generation."""
    outlook: Outlook
    costs: CostOfMoves


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
    if assignment is None or not (now.outlook.step and job.cells.is_plain and job.is_settled):
        # A worker that is on its way has the place that others would move to.
        return []
    book, live = job.book, assignment.roles.keys()
    failed, period = book.counts(live), book.planned_period(assignment)
    best = book.best_placement(sum(failed)) if any(failed) else None
    if best is None or best.counts == failed or period is None:
        return []
    moves = least_moves(live, best.counts, book.pipelines, book.standby)
    saving, pause = 1 - best.period / period, now.costs.of(moves)
    change = JobChange(moves_text(moves), "moved", now.outlook, saving, pause)
    return [Candidate(change, lambda: MovesWanted(moves))]
