"""Which loss to plan for before it happens. Standard library only.

After every change somebody else may be next. A further loss on a stage for which there is no plan would have
to wait for one; a loss for which only a plan for more losses is there would cost speed until the exact one is
made. So these are planned in the background while nothing happens, the first kind first. Between the two
comes a plan for as many losses as there are now, spread evenly, if more are lost than the bundle was made
for: its plans have losses where they cost least, those on demand have them where they happened to be, and a
few moves may pay.
"""

from collections.abc import Collection

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Counts, PlanBook

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
    even = _spread(book, live)
    return inexact if even is None or even in tried else even


def even_counts(lost: Counts) -> Counts:
    """As many losses, as equal as can be; who has lost most keeps what is more than that."""
    each, more = divmod(sum(lost), len(lost))
    most_first = sorted(range(len(lost)), key=lambda stage: (-lost[stage], stage))
    return tuple(each + (most_first.index(stage) < more) for stage in range(len(lost)))


def _spread(book: PlanBook, live: Collection[Worker]) -> Losses | None:
    """The losses of now where nobody has planned them, if they are not there already."""
    lost = book.counts(live)
    even = even_counts(lost)
    if book.is_foreseen(sum(lost)) or even == lost:
        return None
    return tuple(place for place in book.grid if place[0] >= book.pipelines - even[place[1]])
