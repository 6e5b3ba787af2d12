"""Start of a job that leaves stages and pipelines to the compiler: `parallel { workers = 32 }`.

A job starts in a grid, so that its workers have names and every number of failures a plan to go on with at
once. Where the workers fill one, every stage with as many of them, the fastest of such grids is taken. Where
they do not, the job starts under the fastest cut for all of them, in a grid as wide as its widest stage, with
some cells vacant, if no grid of fewer workers is as fast. Other cuts are planned from there, as for any job.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, job_of_layout
from recycle_compiler.ir.units import plural
from recycle_compiler.planner.cut_bounds import FAR, MOST_LAYERS
from recycle_compiler.planner.layout_bounds import layout_bound
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.recut import fastest_layouts, quick_plan
from recycle_compiler.scheduling.budget import Guard

_TRIED = 4
"""Grids, and layouts for workers that fill none, that get a quick plan: those with the best bounds."""


class NoStartError(Exception):
    """No grid of these workers holds the model: one sentence says why."""


def started(job: JobSpec, guard: Guard | None = None) -> JobSpec:
    """The job in the grid that it starts in; any other job as it is. `job.present` says how many are used."""
    if not job.is_free:
        return job
    if job.layer_costs is not None and job.layer_costs.count > MOST_LAYERS:
        raise NoStartError(
            f"it has {job.layer_costs.count} layers, and cuts are compared up to {MOST_LAYERS}: "
            "give `pipeline` and `data`"
        )
    workers, grids = 0, list[Layout]()
    for workers in range(job.free_workers, 0, -1):
        if grids := _surviving(job, _grids(job, workers)):
            break
    else:
        workers = 0
    guard = guard or Guard(job.solver.time_limit_ns)
    best = sorted(grids, key=lambda layout: (layout_bound(job, layout), layout.stages))[:_TRIED]
    if workers < job.free_workers:
        # Whole grids of fewer workers come last: of equally fast ones the first is taken.
        best = [*_surviving(job, fastest_layouts(job, job.free_workers, guard))[:_TRIED], *best]
    if not best:
        raise NoStartError(
            f"{plural(job.free_workers, 'worker')} cannot hold every layer on {job.redundancy} of them and "
            f"survive {plural(job.failures, 'failure')}{' with slots for all experts' if job.slots else ''}"
        )
    if len(best) > 1:
        periods = {layout: quick_plan(job, layout, guard).period for layout in best}
        best.sort(key=lambda layout: periods[layout])
    start = job_of_layout(job, best[0])
    vacant = start.workers - sum(best[0].workers)
    return replace(
        start,
        layer_costs=job.layer_costs,
        split_ppm=job.split_ppm,
        grouping=job.grouping,
        failures=min(job.failures + vacant, start.workers),
        vacant=vacant,
    )


def _surviving(job: JobSpec, layouts: Iterable[Layout]) -> list[Layout]:
    """Those in which the failures that the job tolerates can leave every stage a worker, and slots for its
    experts."""
    return [layout for layout in layouts if sum(layout.workers) - _fewest(job, layout) >= job.failures]


def _fewest(job: JobSpec, layout: Layout) -> int:
    """Workers of all stages that are needed at least."""
    assert job.layer_costs is not None, "a job that the compiler cuts is in layers"
    experts = (max(job.layer_costs.expert_counts[first:end]) for first, end in layout.ranges)
    return sum(max(1, -(-count // max(1, job.slots))) if job.slots else 1 for count in experts)


def _grids(job: JobSpec, workers: int) -> Iterator[Layout]:
    """Every number of stages into which so many workers can be divided, with its best cut."""
    assert job.layer_costs is not None, "a job that the compiler cuts is in layers"
    layouts = Layouts(job, workers)
    units = job.pipelines * job.microbatches
    for stages in range(1, min(job.layer_costs.count, workers) + 1):
        each, rest = divmod(workers, stages)
        if rest == 0 and units % each == 0 and each >= job.redundancy:
            cut = layouts.even_cut(stages, each)
            layout = None if cut is None else Layout(cut, (each,) * stages)
            # The table of cuts does not know exactly what is left of a state that is shared out.
            if layout and not (job.owners and layout_bound(job, layout) >= FAR):
                yield layout
