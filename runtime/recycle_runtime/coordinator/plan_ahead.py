"""Which failure to plan for before it happens. Standard library only.

After every change another worker may be next. A further failure on a stage for which there is no plan would
have to wait for one; a failure for which only a plan for more failures is there would cost speed until the
exact one is made. So these are planned in the background while nothing happens, the first kind first. Between
the two comes a plan for as many failures as there are now, spread evenly, if more workers have failed than
the bundle was made for: its plans have failures where they cost least, those on demand have them where they
happened to be, and a few moves may pay.
"""

from collections.abc import Collection

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.moves import even_counts
from recycle_runtime.plan.plan_book import PlanBook

FailedWorkers = tuple[Worker, ...]


def next_failure(
    book: PlanBook, live: Collection[Worker], tried: Collection[FailedWorkers]
) -> FailedWorkers | None:
    """The failed workers to plan for now; None when there is nothing left to prepare."""
    inexact: FailedWorkers | None = None
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
    even = _spread(book, live)
    return inexact if even is None or even in tried else even


def _spread(book: PlanBook, live: Collection[Worker]) -> FailedWorkers | None:
    """The failures of now, spread evenly, if nothing else was planned and they are not so already."""
    failed = book.counts(live)
    even = even_counts(failed)
    if book.is_planned(sum(failed)) or even == failed:
        return None
    return tuple(place for place in book.grid if place[0] >= book.pipelines - even[place[1]])
