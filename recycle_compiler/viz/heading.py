"""Heading of a plan, in a line or two: the shape of its job, who failed, which layers are where."""

from collections.abc import Iterator

from recycle_compiler.ir.groups import GroupedLayout, grouped_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, layout_of
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import plural
from recycle_compiler.viz.table import stages_text

_LISTED = 12
"""Failed workers, or stages, that are named."""


def heading(schedule: Schedule) -> Iterator[str]:
    """The lines; those about layers only for a job that has them."""
    job = schedule.job
    layout = layout_of(job, schedule.failed)
    stages = plural(job.stages, "stage")
    if (groups := grouped_layout_of(job, schedule.failed)) is not None:
        yield from _of_groups(schedule, groups)
        return
    if job.is_recut and layout is not None:
        units = plural(job.pipelines * job.microbatches // job.parts, "micro-batch")
        halves = ", each in two halves" if job.parts == 2 else ""
        layers = plural(sum(layout.layers), "layer")
        yield (
            f"{job.name}: {layers} in {stages} on {workers_text(schedule)}, another cut than the job starts "
            f"with; {units}{halves}"
        )
        yield f"layers x workers of each stage: {stage_list(layout)}"
        return
    names = [str(worker) for worker in schedule.failed[:_LISTED]]
    if len(schedule.failed) > _LISTED:
        names.append(f"and {len(schedule.failed) - _LISTED} more")
    shape = f"{stages}, {plural(job.pipelines, 'pipeline')}, {plural(job.microbatches, 'micro-batch')} each"
    yield f"{job.name}: {shape}; failed: {', '.join(names) or 'none'}"
    if layout is not None:
        yield f"layers x workers of each stage: {stage_list(layout)}, as the job cuts them"


def _of_groups(schedule: Schedule, layout: GroupedLayout) -> Iterator[str]:
    job = schedule.job
    units = plural(job.pipelines * job.microbatches // job.parts, "micro-batch")
    halves = ", each in two halves" if job.parts == 2 else ""
    yield (
        f"{job.name}: {plural(sum(layout.layers), 'layer')} on {workers_text(schedule)} in "
        f"{len(layout.groups)} groups of pipelines with cuts of their own; {units}{halves}"
    )
    for number, (group, share) in enumerate(zip(layout.groups, layout.shares, strict=True)):
        stages = f"{plural(group.stages, 'stage')} on {plural(sum(group.workers), 'worker')}"
        yield (
            f"group {number} has {plural(share, 'micro-batch')} in {stages}, layers x workers of each: "
            f"{stage_list(group)}"
        )


def no_plan(schedule: Schedule) -> str:
    """Plans that the bound of a plan covers, as in "no plan is faster"."""
    job, claims = schedule.job, schedule.claims
    over = claims.bound_over_cuts
    if not (over or job.cut):
        return "no plan"
    if over >= claims.lower_bound:
        return f"no plan{holders_text(job)}"
    return "no plan of these groups and shares" if job.groups else "no plan of this cut"


def no_plan_of_any_cut(schedule: Schedule) -> str:
    """Plans that the bound over all cuts covers, as in "no plan is faster"."""
    job = schedule.job
    # A plan under one cut does not say whether groups were looked for.
    groups = " or, if groups were planned, in two groups" if job.grouping else ""
    if job.groups:
        groups = " or in two groups"
    return f"no plan for {workers_text(schedule)}{holders_text(job)}, under one cut{groups},"


def holders_text(job: JobSpec) -> str:
    """Cuts that a bound over all cuts covers, as in "no plan with every layer on 2 or more"."""
    if job.redundancy < 2:
        return ""
    slots = f", and slots for its experts on all but {job.redundancy - 1}" if any(job.expert_counts) else ""
    return f" with every layer on {job.redundancy} or more{slots}"


def workers_text(schedule: Schedule) -> str:
    """Number of workers of a plan, in words."""
    return plural(schedule.job.workers - len(schedule.failed), "worker")


def stage_list(layout: Layout) -> str:
    """Stage by stage; of many, equal neighbours once."""
    return str(layout).replace(",", " ") if layout.stages <= _LISTED else stages_text(layout)
