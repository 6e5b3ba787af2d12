"""Options: a layout, and the job that results from it; what is wrong with one is said in a sentence."""

import argparse

from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.groups import (
    AnyLayout,
    GroupedLayout,
    absent_of_groups,
    job_of_groups,
    parse_any_layout,
    shares_by_stage,
)
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import absent_cells, job_of_layout
from recycle_compiler.ir.units import memory_text, plural
from recycle_runtime.cli.output import NO_PLAN, Output, UsageError, UserError

NOT_IN_LAYERS = (
    "the job cannot be cut otherwise: it gives the costs of whole stages, or says `recut = off`; give costs "
    "by layer with `model`, `layers { ... }` or a profile by layer"
)


def layout_argument(text: str) -> AnyLayout:
    """The value of `--layout`, also as the table of `compile` prints it."""
    stages = text.strip().removesuffix("(own cut)")
    if stages.endswith("in halves"):
        raise argparse.ArgumentTypeError(
            "leave out `in halves`: it names no stage (`plan` has it as --split)"
        )
    try:
        return parse_any_layout(stages)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def derived_job(job: JobSpec, layout: AnyLayout, path: str, output: Output) -> JobSpec:
    """The job under this layout, if it can be one."""
    costs = job.layer_costs
    if costs is None:
        raise UserError(f"{path}: {NOT_IN_LAYERS}")
    if (got := sum(layout.layers)) != costs.count:
        raise UsageError(
            f"--layout {layout} has {plural(got, 'layer')}, {job.name} has {costs.count}"
            + (": the embedding and the head are layers too" if got + 2 == costs.count else "")
        )
    if isinstance(layout, GroupedLayout):
        return _job_in_groups(job, layout, path, output)
    units = job.pipelines * job.microbatches
    if (most := max(layout.workers)) > units:
        raise UsageError(
            f"--layout {layout} has {plural(most, 'worker')} on a stage, and only "
            f"{plural(units, 'micro-batch')} to share among them"
        )
    _check_memory(job, layout)
    if (fewest := min(layout.workers)) < job.redundancy:
        end = ": its failure ends the job" if fewest == 1 else ""
        output.say(
            f"note: stage {layout.workers.index(fewest)} has {plural(fewest, 'worker')}, where the job asks "
            f"for {job.redundancy} holders of each layer{end}"
        )
    return job_of_layout(job, layout)


def _job_in_groups(job: JobSpec, layout: GroupedLayout, path: str, output: Output) -> JobSpec:
    """The job with its pipelines in groups, if it can have them."""
    units, shared = job.pipelines * job.microbatches, sum(layout.shares)
    if shared != units:
        raise UsageError(f"--layout {layout} shares {plural(shared, 'micro-batch')}, {job.name} has {units}")
    for group, share in zip(layout.groups, layout.shares, strict=True):
        if (most := max(group.workers)) > share:
            raise UsageError(
                f"--layout {layout} has {plural(most, 'worker')} on a stage of {group}, and only "
                f"{plural(share, 'micro-batch')} to share among them"
            )
    if job.tied:
        raise UserError(f"{path}: layers that share parameters cannot be in groups of pipelines")
    if job.slots:
        raise UserError(f"{path}: workers that share experts cannot be in groups of pipelines")
    if not job.techniques.adaptive:
        raise UserError(f"{path}: groups of pipelines need the technique `adaptive`")
    _check_memory(job, layout)
    derived = job_of_groups(job, layout)
    holders = [sum(layout.workers[stage] for stage in stages) for stages in derived.holders]
    if (fewest := min(holders)) < job.redundancy:
        first = sum(derived.cut[: holders.index(fewest)])
        output.say(
            f"note: layer {first} has {plural(fewest, 'holder')}, where the job asks for {job.redundancy} "
            "holders of each layer"
        )
    return derived


def missing_of(job: JobSpec, layout: AnyLayout, failed: FailureSet, slow: FailureSet) -> FailureSet:
    """Cells of the derived job's grid without a worker: those that have none, and those that failed."""
    for worker in (*failed, *slow):
        if worker.stage >= layout.stages or worker.pipeline >= layout.workers[worker.stage]:
            raise UsageError(
                f"worker {worker} does not exist under --layout {layout}: workers are rank:stage, counted "
                f"from 0 on each of its {plural(layout.stages, 'stage')}"
            )
    for stage, workers in enumerate(layout.workers):
        if sum(worker.stage == stage for worker in failed) == workers:
            who = "its only worker" if workers == 1 else f"all {workers} of its workers"
            why = f"stage {stage} of --layout {layout} has no live worker: {who} failed"
            raise UserError(f"no plan for {job.name}: {why}", NO_PLAN)
    is_grouped = isinstance(layout, GroupedLayout)
    absent = absent_of_groups(job, layout) if is_grouped else absent_cells(job, layout)
    return failure_set((*absent, *failed))


def _check_memory(job: JobSpec, layout: AnyLayout) -> None:
    """A stage must have room for one micro-batch beside the state of its layers."""
    costs = job.layer_costs
    if costs is None or costs.capacity is None:
        return
    shared = shares_by_stage(job, layout)
    for stage, (first, end) in enumerate(layout.ranges):
        state, activation = sum(costs.resident[first:end]) + shared[stage], sum(costs.activation[first:end])
        if state + activation > costs.capacity:
            needs = f"one micro-batch needs {memory_text(job, activation)}"
            held = f" besides {memory_text(job, state)} of weights, gradients and optimizer state"
            raise UserError(
                f"no plan for {job.name}: on stage {stage} of --layout {layout} {needs}"
                f"{held if state else ''}, capacity is {memory_text(job, costs.capacity)}",
                NO_PLAN,
            )
