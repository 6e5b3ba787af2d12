"""`recyclec retime`: how long a step of a plan takes with the op times of another job.

A plan under another cut takes the times of that job's layers.
"""

import json
from argparse import ArgumentParser, Namespace
from dataclasses import replace

from recycle_compiler.analysis.trace_diff.network import retimed_step
from recycle_compiler.analysis.trace_diff.text import percentage
from recycle_compiler.cli.bundles import schedule_of
from recycle_compiler.cli.options.planning import add_slow_argument
from recycle_compiler.cli.options.plans import OWN, Picked, add_plan_arguments, check_workers, pick_plan
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import Worker, failed_per_stage, failure_set
from recycle_compiler.ir.groups import AnyLayout, GroupedLayout, any_layout_of, job_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import halved, job_of_layout, own_layout
from recycle_compiler.ir.units import time_text, unit_name
from recycle_runtime.cli.output import DONE, Output, UsageError, UserError


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_arguments(parser, default_cut=OWN)
    parser.add_argument(
        "--times", required=True, metavar="JOB", help="a job of the same shape, with the op times to use"
    )
    add_slow_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, with times in ticks")


def run(arguments: Namespace, output: Output) -> int:
    picked = pick_plan(arguments, output, OWN)
    streams = picked.streams
    job = _times_for(picked, load_job(arguments.times).spec, arguments.bundle, arguments.times)
    _check_shape(streams.job, job, arguments.bundle, arguments.times)
    slow = {Worker(*worker): factor for worker, factor in arguments.slow}
    check_workers(failure_set(slow), job.pipelines, job.stages)
    if gone := sorted(set(slow) & set(streams.failed)):
        why = "has no such worker" if streams.job.is_recut else "counts it as failed"
        raise UsageError(f"worker {gone[0]} cannot be slow: this plan {why}")
    # Who is left steps more of a sharded state.
    job = job.left_by(failed_per_stage(streams.failed, job.stages))
    step = retimed_step(schedule_of(streams, arguments.bundle), job, slow)
    planned = streams.claims.period
    if arguments.json:
        failed = [[worker.pipeline, worker.stage] for worker in streams.failed]
        row = {"job": job.name, "failed": failed, "planned_ticks": planned, "step_ticks": step}
        output.data(json.dumps(row) + "\n")
        return DONE
    output.data(
        f"a step takes {time_text(job, round(step))} {unit_name(job)} with these times, "
        f"{time_text(job, planned)} as planned ({percentage(step / planned - 1)})\n"
    )
    return DONE


def _times_for(picked: Picked, times: JobSpec, path: str, times_path: str) -> JobSpec:
    """The job of the times; if it is in layers, cut as the plan has them."""
    planned = picked.streams.job
    if not planned.is_recut:
        if not planned.cut or times.layer_costs is None or (times.cut == planned.cut and not times.is_free):
            return times
        return _under_layout(times, own_layout(planned), path, times_path)
    if planned.parts == 2:
        if times.split_ppm is None:
            raise UserError(f"{times_path}: does not say what half a micro-batch costs; {path} splits them")
        times = halved(times)
    whole = picked.streams.failed if picked.cut is None else picked.bundle.recuts[picked.cut].plans[0].failed
    layout = any_layout_of(planned, failure_set(whole))
    assert layout is not None, "another cut has a layout"
    found = _under_layout(times, layout, path, times_path)
    if _units(found) != _units(planned):
        return found
    # A plan for fewer workers keeps the grid that it was made for.
    return replace(found, pipelines=planned.pipelines, microbatches=planned.microbatches)


def _units(job: JobSpec) -> int:
    return job.pipelines * job.microbatches


def _under_layout(times: JobSpec, layout: AnyLayout, path: str, times_path: str) -> JobSpec:
    """The job with its layers cut this way."""
    if times.layer_costs is None:
        raise UserError(
            f"{times_path}: times of whole stages; the plan of {path} is under another cut, and needs a job "
            "in layers"
        )
    if sum(layout.layers) != times.layer_costs.count:
        raise UserError(
            f"{times_path}: a job of {times.layer_costs.count} layers; {path} is for {sum(layout.layers)}"
        )
    try:
        if isinstance(layout, GroupedLayout):
            return job_of_groups(times, layout)
        return job_of_layout(times, layout)
    except ValueError as error:
        raise UserError(f"{times_path}: {error}") from None


def _check_shape(planned: JobSpec, times: JobSpec, path: str, times_path: str) -> None:
    shapes = [(job.stages, job.pipelines, job.microbatches) for job in (planned, times)]
    if shapes[0] != shapes[1]:
        wanted, got = ("{} stages, {} pipelines, {} micro-batches".format(*shape) for shape in shapes)
        raise UserError(f"{times_path}: a job of another shape: {got}; {path} is for {wanted}")
    if (planned.unit == "slot") != (times.unit == "slot"):
        raise UserError(f"{times_path}: times in {times.unit} and a plan in {planned.unit} do not compare")
    if planned.techniques.stagger != times.techniques.stagger:
        raise UserError(f"{times_path}: one of job and plan staggers its optimizer, the other does not")
    if bool(planned.owners) != bool(times.owners):
        raise UserError(
            f"{times_path}: one of job and plan has the optimizer's state in shards, the other whole"
        )
