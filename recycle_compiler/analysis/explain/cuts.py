"""Explanation of the cut of a plan of a job in layers: what other cuts and one worker more would bring.

Judged by bounds, which are the planner's own: no plan of the changed layout is faster. What is known of whole
plans, those of the bundle, stands beside them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import AnyLayout, any_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, halved, layout_of
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.planner.layout_bounds import layout_bound
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import can_recut, variants
from recycle_runtime.plan.bundle import Bundle

NO_ROOM = 1 << 60
"""The bound of a layout in which some stage cannot hold one micro-batch."""


@dataclass(frozen=True, slots=True)
class BorderMove:
    """One layer or one worker on the other side of a border between two stages."""

    what: str
    """`layer` or `worker`."""
    source: int
    target: int
    layout: Layout
    bound: int
    """No plan of the layout is faster; NO_ROOM where it does not fit into memory."""

    @property
    def fits(self) -> bool:
        return self.bound < NO_ROOM


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The fastest plan of the bundle for another number of failures."""

    failures: int
    period: int
    layout: AnyLayout


@dataclass(frozen=True, slots=True)
class CutFacts:
    """Figures of a plan's cut; times in ticks."""

    job: JobSpec
    """The job with its layers, under its own cut."""
    failures: int
    layout: Layout
    is_own: bool
    bound: int
    """Of this layout."""
    bound_over_cuts: int
    """Lower bound on the period of any cut with as many workers; 0 when it is not known. Where the planner
    has looked at groups of pipelines, the bound covers two of them too."""
    bound_one_cut: int
    """Lower bound on the period under one cut with as many workers; 0 when it is not known."""
    own: Neighbour | None
    """The plan under the own cut for as many failures; None if the bundle has none."""
    fewer: Neighbour | None
    """The fastest plan for one failure fewer."""
    moves: tuple[BorderMove, ...]
    """Over every border, by border."""
    one_more: int | None
    """Lower bound on the period of any cut with one worker more; None if there is no such cut."""
    where_one_more: tuple[int, int]
    """Under this cut, the stage where one worker more helps most, and the bound with it."""

    @property
    def workers(self) -> int:
        """Live ones; a cut may leave some of them on standby."""
        return self.job.workers - self.failures


def cut_facts(bundle: Bundle | None, job: JobSpec, schedule: Schedule, failures: int) -> CutFacts | None:
    """The facts for a plan of a bundle, made for so many failures; None if the job cannot be re-cut.

    Without a bundle nothing is known of other plans, and the layout may be anyone's choice.
    """
    layout = layout_of(schedule.job, schedule.failed)
    if layout is None or not can_recut(job):
        return None
    if bundle is None:
        # Compared with cuts that may have as few holders of a layer as this one.
        job = replace(job, redundancy=min(job.redundancy, *layout.workers))
    # Under another cut micro-batches may be split in two.
    variant = halved(job) if schedule.job.parts == 2 else job
    bound_one_cut = bound_over_one_cut(bundle, job, failures)
    own, over_cuts = None, schedule.claims.bound_over_cuts if bundle is not None else bound_one_cut
    if bundle is not None and (plan := plan_for(bundle, failures)) is not None:
        own, over_cuts = own_plan(bundle, job, plan), bundle.plans[plan].bound_over_cuts
    more = job.workers - failures + 1
    return CutFacts(
        job=job,
        failures=failures,
        layout=layout,
        is_own=not schedule.job.is_recut,
        bound=layout_bound(variant, layout),
        bound_over_cuts=over_cuts,
        bound_one_cut=bound_one_cut,
        own=own,
        fewer=fastest_plan(bundle, job, failures - 1),
        moves=tuple(_moves(variant, layout)),
        one_more=min(cut_periods(job, more), default=None),
        where_one_more=min(_with_one_more(variant, layout), key=lambda entry: (entry[1], entry[0])),
    )


def cut_periods(job: JobSpec, workers: int) -> Iterator[int]:
    """Lower bounds on the period with whole micro-batches, and with halves."""
    for variant in variants(job).values():
        least = Layouts(variant, workers).least_period(workers)
        if least is not None:
            yield least


def bound_over_one_cut(bundle: Bundle | None, job: JobSpec, failures: int) -> int:
    """Lower bound on the period under one cut with so many failures; 0 when it is not known.

    The own cut may leave a layer on fewer workers than others have to.
    """
    own: Iterable[int] = _bounds_with_few_holders(job, failures)
    if bundle is not None:
        own = (entry.lower_bound for entry in bundle.plans if len(entry.failed) == failures)
    return min((*own, *cut_periods(job, job.workers - failures)), default=0)


def _bounds_with_few_holders(job: JobSpec, failures: int) -> Iterator[int]:
    """Of the own cut, for each stage: what it takes at least where the stage has too few workers.

    With some failures elsewhere it takes no less than with none there.
    """
    fewest = min(job.redundancy - 1, job.pipelines)
    if fewest and job.pipelines - fewest <= failures:
        for stage in range(job.stages):
            workers = tuple(fewest if other == stage else job.pipelines for other in range(job.stages))
            yield layout_bound(job, Layout(job.cut, workers))


def plan_for(bundle: Bundle, failures: int) -> int | None:
    """The number of the plan under the own cut for so many failures; None if there is none."""
    return next((plan for plan, entry in enumerate(bundle.plans) if len(entry.failed) == failures), None)


def own_plan(bundle: Bundle, job: JobSpec, plan: int) -> Neighbour:
    """The plan of this number, under the own cut."""
    entry = bundle.plans[plan]
    layout = layout_of(job, failure_set(entry.failed))
    assert layout is not None, "a job in layers"
    return Neighbour(len(entry.failed), entry.period, layout)


def fastest_plan(
    bundle: Bundle | None, job: JobSpec, failures: int, *, groups: bool = True
) -> Neighbour | None:
    """The fastest plan of any cut for so many failures, also in groups of pipelines if these count."""
    if bundle is None or (plan := plan_for(bundle, failures)) is None:
        return None
    number = bundle.fastest_recut(job.workers - failures, groups=groups)
    if number is None or bundle.recuts[number].plans[0].period >= bundle.plans[plan].period:
        return own_plan(bundle, job, plan)
    recut = bundle.recuts[number]
    layout = any_layout_of(read_job(recut), failure_set(recut.plans[0].failed))
    assert layout is not None, "another cut is one of layers"
    return Neighbour(failures, recut.plans[0].period, layout)


def _moves(job: JobSpec, layout: Layout) -> Iterator[BorderMove]:
    units = job.pipelines * job.microbatches
    for stage, after in pairwise(range(layout.stages)):
        for source, target in ((stage, after), (after, stage)):
            if layout.layers[source] > 1:
                layers = _shifted(layout.layers, source, target)
                yield _move(job, "layer", source, target, Layout(layers, layout.workers))
            if layout.workers[source] > job.redundancy and layout.workers[target] < units:
                workers = _shifted(layout.workers, source, target)
                yield _move(job, "worker", source, target, Layout(layout.layers, workers))


def _move(job: JobSpec, what: str, source: int, target: int, layout: Layout) -> BorderMove:
    return BorderMove(what, source, target, layout, min(NO_ROOM, layout_bound(job, layout)))


def _shifted(values: tuple[int, ...], source: int, target: int) -> tuple[int, ...]:
    changed = list(values)
    changed[source] -= 1
    changed[target] += 1
    return tuple(changed)


def _with_one_more(job: JobSpec, layout: Layout) -> Iterator[tuple[int, int]]:
    """Each stage, and the bound of the layout with one worker more on it."""
    units = job.pipelines * job.microbatches
    for stage, workers in enumerate(layout.workers):
        more = list(layout.workers)
        more[stage] = min(units, workers + 1)
        yield stage, layout_bound(job, Layout(layout.layers, tuple(more)))
