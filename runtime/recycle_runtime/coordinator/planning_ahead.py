"""Plans that a job could need next and does not have, in the order in which to make them. Needs no torch.

failures that nothing would fit     of another worker, or of all workers of a node: all would have to wait
the fastest cut for those left      if more workers are gone than the bundle was made for, and the job
                                    can be cut anew
failures placed better              in the same case: plans on demand have failures where they happened to
                                    be, and with the slowest stage as fast as can be, a few moves may pay
failures without a plan of their own    they would cost speed until that is made
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.coordinator.plans import FailedWorkers, Request, request_for
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.moves import Counts, quickest_counts
from recycle_runtime.plan.plan_book import PlanBook


def missing_plans(
    book: PlanBook,
    live: Collection[Worker],
    nodes: Iterable[Collection[Worker]] = (),
    asked: Collection[Request] = (),
    *,
    workers_to_cut_for: int = 0,
) -> Iterator[Request]:
    """Those that have not been `asked` for.

    `live` are cells, and `nodes` those that would fail together. `workers_to_cut_for` are all who are there,
    in a job that can be cut anew.
    """
    inexact: list[Request] = []
    for left in _left_after(book, live, nodes):
        request = request_for(book, _failed(book, left))
        if request in asked:
            continue
        assignment = book.assign(left)
        if assignment is None:
            yield request
        elif not assignment.is_exact:
            inexact.append(request)
    others: list[Request] = []
    if workers_to_cut_for and is_beyond(book, workers_to_cut_for):
        others.append(Request((), split=book.split == 2, workers=workers_to_cut_for))
    if (failed := _better_placed(book, live)) is not None:
        others.append(request_for(book, failed))
    yield from (request for request in others if request not in asked)
    yield from inexact


def _left_after(
    book: PlanBook, live: Collection[Worker], nodes: Iterable[Collection[Worker]]
) -> Iterator[list[Worker]]:
    """The cells that each failure would leave, a whole node before a single worker."""
    stages: dict[int, list[Worker]] = {stage: [] for stage in range(book.stages)}
    for place in sorted(live):
        stages[place[1]].append(place)
    for lost in _losses(book, nodes):
        if any(count >= len(stages[stage]) for stage, count in enumerate(lost) if count):
            continue
        # Peers are interchangeable, so that the last of them stand for all.
        yield [place for stage, here in stages.items() for place in here[: len(here) - lost[stage]]]


def _failed(book: PlanBook, left: Collection[Worker]) -> FailedWorkers:
    kept = set(left)
    return tuple(place for place in book.grid if place not in kept)


def is_beyond(book: PlanBook, workers: int) -> bool:
    """Whether more workers are gone than the bundle that the job was started with has plans for."""
    own = book.family[0]
    fewest = min(len(own.first.workers(number)) for number in range(len(own.first.plans)))
    return workers < fewest


def _losses(book: PlanBook, nodes: Iterable[Collection[Worker]]) -> list[Counts]:
    """Workers of each stage that may fail at the same moment: of each node, and one alone; each once."""
    found: dict[Counts, None] = {}
    for cells in nodes:
        stages = Counter(stage for _, stage in cells)
        found[tuple(stages[stage] for stage in range(book.stages))] = None
    for stage in range(book.stages):
        found[tuple(int(stage == other) for other in range(book.stages))] = None
    return [lost for lost in found if any(lost)]


def _better_placed(book: PlanBook, live: Collection[Worker]) -> FailedWorkers | None:
    """The failures of now where they do least, if nothing else was planned and they do not lie so already."""
    if not book.is_own:
        return None
    failed = book.counts(live)
    if book.is_planned(sum(failed)):
        return None
    wanted = quickest_counts(failed, JobText(book.bundles[0].job_text).loads)
    if wanted == failed:
        return None
    return tuple(place for place in book.grid if place[0] >= book.pipelines - wanted[place[1]])
