"""`recyclec plan`: on demand, for exactly these failed workers, not normalized across stages.

With `--slow`, workers that are slower than their peers have fewer micro-batches. With `--layout`, layers are
cut into other stages; workers are then rank:stage of that layout, and so are those that failed; `--split`
splits every micro-batch in two.
"""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.cli.options.layouts import derived_job, layout_argument, missing_of
from recycle_compiler.cli.options.planning import (
    add_slow_argument,
    add_techniques_argument,
    load_for,
    planning,
    start_of,
    with_techniques,
)
from recycle_compiler.cli.options.plans import check_survivors, check_workers
from recycle_compiler.cli.options.views import add_view_arguments, deliver_view
from recycle_compiler.cli.values import workers
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, halved
from recycle_compiler.ir.units import percent, time_text, unit_name
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.planner.slow_workers import SlowPlan
from recycle_compiler.scheduling.slow_workers import SlowWorkers, slow_workers
from recycle_runtime.cli.output import DONE, STANDARD, Output, UsageError, UserError
from recycle_runtime.cli.parser import Arguments

_LARGEST = 1 << 60
"""Ticks that the planner can reckon with."""


def add_arguments(parser: Arguments) -> None:
    add_job_argument(parser)
    parser.add_argument(
        "--failed",
        type=workers,
        metavar="P:S,P:S",
        help="the failed workers, pipeline:stage; required unless --slow or --layout is given",
    )
    parser.add_argument(
        "--layout",
        type=layout_argument,
        metavar="LxW,LxW",
        help="plan a job in layers under this cut: layers x workers of each stage, as 8x4,8x4,7x5; "
        "workers are then rank:stage of this layout",
    )
    parser.add_argument(
        "--split",
        action="store_true",
        help="with --layout: split every micro-batch in two; the job says what that costs, as in "
        "`batch { split = 4%% }`",
    )
    add_slow_argument(parser, "; they get fewer micro-batches")
    add_techniques_argument(parser)
    add_view_arguments(parser, file_note="; FILE.plan is a bundle of this one plan")


def run(arguments: Namespace, output: Output) -> int:
    layout: Layout | None = arguments.layout
    if arguments.failed is None and not arguments.slow and layout is None:
        raise UsageError("the following arguments are required: --failed, --slow or --layout")
    if arguments.split and layout is None:
        raise UsageError("--split goes with --layout: under its own cut a job keeps its micro-batches whole")
    out: str = arguments.out or STANDARD
    into_bundle = out.endswith(".plan")
    if into_bundle and arguments.format:
        raise UsageError(
            f"{out} would be a bundle, which has no format: leave out --format {arguments.format}, "
            "or choose a name that does not end in .plan"
        )
    loaded = load_for(arguments.job, out)
    job = start_of(with_techniques(loaded.spec, arguments.techniques), output)
    failed = failure_set(arguments.failed or ())
    slow = slow_workers(arguments.slow)
    if layout is None:
        check_workers(failed, job.pipelines, job.stages)
        check_survivors(failed, job)
    else:
        job = derived_job(_split(job, loaded.name) if arguments.split else job, layout, loaded.name, output)
        failed = missing_of(job, layout, failed, failure_set(one.worker for one in slow))
    _check_slow(slow, failed, job)
    with planning(job):
        if slow:
            found = plan_slow(job, failed, slow)
            streams = found.streams
            output.say(_with_slow(found, slow))
        else:
            streams = plan_failed(job, failed)
    claims = streams.claims
    if claims.cut_short:
        above = f"; the plan is at most {percent(claims.gap)} above optimal"
        output.say(f"the time limit cut the search short{'' if slow else above}")
    if into_bundle:
        write_bundle(Path(out), source=loaded.source, plans=[streams])
        output.written.append(out)
        output.say(f"wrote {out}")
    else:
        deliver_view(streams, loaded.name, arguments, output)
    return DONE


def _split(job: JobSpec, path: str) -> JobSpec:
    """The job with every micro-batch in two."""
    if job.split_ppm is None:
        raise UserError(
            f"{path}: does not say what half a micro-batch costs: add `split` to its batch block, as in "
            "`batch { split = 4% }`"
        )
    return halved(job)


def _check_slow(slow: SlowWorkers, failed: FailureSet, job: JobSpec) -> None:
    check_workers(failure_set(one.worker for one in slow), job.pipelines, job.stages)
    if gone := [one.worker for one in slow if one.worker in failed]:
        raise UsageError(f"worker {gone[0]} cannot be slow: --failed counts it as failed")
    longest = max(*job.forward, *job.backward_input, *job.backward_weight, *job.optimizer)
    work = 8 * longest * job.pipelines * job.microbatches * job.stages
    if wild := [one for one in slow if one.factor * work > _LARGEST]:
        raise UsageError(f"worker {wild[0].worker} is so slow that its times are too large to plan")
    if slow and not job.techniques.adaptive:
        raise UserError(
            f"worker {slow[0].worker} cannot have less to do: without the technique `adaptive` "
            "every micro-batch stays in its pipeline; add it, or leave out --slow"
        )


def _with_slow(found: SlowPlan, slow: SlowWorkers) -> str:
    """What a step takes, and what the slow workers have to do."""
    job = found.streams.job
    who = ", ".join(f"{one.worker} {float(one.factor):g} times" for one in slow)
    step, equal = time_text(job, found.step), time_text(job, found.equal_step)
    each = ", ".join(f"{one.worker} has {share}" for one, share in zip(slow, found.shares, strict=True))
    total = job.pipelines * job.microbatches
    return (
        f"with {who} slower a step takes {step} {unit_name(job)} (with equal shares {equal}); "
        f"{each} of {total} micro-batches"
    )
