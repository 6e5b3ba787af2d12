"""`recyclec plan`: on demand, for exactly these failed workers, not normalized across stages.

With `--slow`, workers that are slower than their peers have fewer micro-batches. With `--layout`, layers are
cut into other stages; workers are then rank:stage of that layout, and so are those that failed; `--split`
splits every micro-batch in two. With `--workers`, the cut is chosen: the fastest for so many workers.
"""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.cli.options.layouts import NOT_IN_LAYERS, derived_job, layout_argument, missing_of
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
from recycle_compiler.cli.values import positive, workers
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, halved
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import percent, plural, time_text, unit_name
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.planner.recut import fastest_recut, why_own_cut
from recycle_compiler.planner.slow_workers import SlowPlan
from recycle_compiler.scheduling.budget import Deadline
from recycle_compiler.scheduling.slow_workers import SlowWorkers, slow_workers
from recycle_runtime.cli.output import DONE, NO_PLAN, STANDARD, Output, UsageError, UserError
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
        help="with --layout or --workers: split every micro-batch in two; the job says what that costs, as "
        "in `batch { split = 4%% }`",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="plan a job in layers under the fastest cut for N workers; a .plan file also has the plan that "
        "covers one failure more on any stage",
    )
    add_slow_argument(parser, "; they get fewer micro-batches")
    add_techniques_argument(parser)
    add_view_arguments(parser, file_note="; FILE.plan is a bundle of this one plan")


def run(arguments: Namespace, output: Output) -> int:
    _check_usage(arguments)
    out: str = arguments.out or STANDARD
    into_bundle = out.endswith(".plan")
    if into_bundle and arguments.format:
        raise UsageError(
            f"{out} would be a bundle, which has no format: leave out --format {arguments.format}, "
            "or choose a name that does not end in .plan"
        )
    loaded = load_for(arguments.job, out)
    job = start_of(with_techniques(loaded.spec, arguments.techniques), output)
    if arguments.split:
        _check_split(job, loaded.name)
    if arguments.workers is None:
        plans = [_plan(arguments, job, loaded.name, output)]
    else:
        plans = _fastest(arguments, job, loaded.name, output)
    claims = plans[0].claims
    if claims.cut_short:
        above = f"; the plan is at most {percent(claims.gap)} above optimal"
        output.say(f"the time limit cut the search short{'' if arguments.slow else above}")
    if into_bundle:
        write_bundle(Path(out), source=loaded.source, plans=plans)
        output.written.append(out)
        output.say(f"wrote {out}")
    else:
        deliver_view(plans[0], loaded.name, arguments, output)
    return DONE


def _check_usage(arguments: Namespace) -> None:
    others = [name for name in ("failed", "slow", "layout") if getattr(arguments, name)]
    if arguments.workers is not None and others:
        raise UsageError(f"--workers chooses the cut and who works: leave out --{others[0]}")
    if arguments.failed is None and not arguments.slow and not arguments.layout and not arguments.workers:
        raise UsageError("the following arguments are required: --failed, --slow, --layout or --workers")
    if arguments.split and not (arguments.layout or arguments.workers):
        raise UsageError(
            "--split goes with --layout or --workers: under its own cut a job keeps its micro-batches whole"
        )


def _plan(arguments: Namespace, job: JobSpec, path: str, output: Output) -> Streams:
    """For these failed or slow workers, of the own cut or of a layout."""
    layout: Layout | None = arguments.layout
    failed = failure_set(arguments.failed or ())
    slow = slow_workers(arguments.slow)
    if layout is None:
        check_workers(failed, job.pipelines, job.stages)
        check_survivors(failed, job)
    else:
        job = derived_job(halved(job) if arguments.split else job, layout, path, output)
        failed = missing_of(job, layout, failed, failure_set(one.worker for one in slow))
    _check_slow(slow, failed, job)
    with planning(job):
        if not slow:
            return plan_failed(job, failed)
        found = plan_slow(job, failed, slow)
    output.say(_with_slow(found, slow))
    return found.streams


def _fastest(arguments: Namespace, job: JobSpec, path: str, output: Output) -> list[Streams]:
    """Of the fastest cut for so many workers: for all of them, and for one failure more on any stage."""
    workers: int = arguments.workers
    if job.layer_costs is None:
        raise UserError(f"{path}: {NOT_IN_LAYERS}")
    if why := why_own_cut(job):
        raise UserError(f"no other cut for {job.name}: {why}", NO_PLAN)
    if workers > job.workers:
        raise UsageError(f"--workers must be at most {job.workers}, the workers of the job, got {workers}")
    found = fastest_recut(job, workers, Deadline(job.solver.time_limit_ns), split=arguments.split)
    if found is None:
        layers = plural(job.layer_costs.count, "layer")
        raise UserError(
            f"no plan for {job.name}: {plural(workers, 'worker')} cannot hold {layers}, each on "
            f"{job.redundancy} of them",
            NO_PLAN,
        )
    recut, least = found
    period, bound = (f"{time_text(job, ticks)} {unit_name(job)}" for ticks in (recut.claims.period, least))
    output.say(
        f"the fastest cut found for {plural(workers, 'worker')} is {recut.layout}: a step takes {period}; "
        f"none of any cut takes less than {bound}"
    )
    return list(recut.plans)


def _check_split(job: JobSpec, path: str) -> None:
    if job.split_ppm is None:
        raise UserError(
            f"{path}: does not say what half a micro-batch costs: add `split` to its batch block, as in "
            "`batch { split = 4% }`"
        )


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
