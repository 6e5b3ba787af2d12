"""Which loss to plan for before it happens. Standard library only.

After every change somebody else may be next. A further loss on a stage for which there is no plan would have
to wait for one; a loss for which only a plan for more losses is there would cost speed until the exact one is
made. So these are planned in the background while nothing happens, the first kind first.
"""

from collections.abc import Collection

from recycle_runtime.assembly import Worker
from recycle_runtime.coordinator.plan_book import PlanBook

Losses = tuple[Worker, ...]


def next_loss(book: PlanBook, live: Collection[Worker], tried: Collection[Losses]) -> Losses | None:
    """The failed workers to plan for now; None when there is nothing left to prepare."""
    inexact: Losses | None = None
    for stage in range(book.stages):
        here = sorted(place for place in live if place[1] == stage)
        if len(here) < 2:
            continue
        left = [place for place in live if place != here[-1]]
        failed = tuple(place for place in book.grid if place not in left)
        if failed in tried:
            continue
        assignment = book.assign(left)
        if assignment is None:
            return failed
        if not assignment.is_exact and inexact is None:
            inexact = failed
    return inexact
