"""`recyclec plan`: on demand, for exactly these failed workers, not normalized across stages.

With `--slow`, workers that are slower than their peers have fewer micro-batches. With `--layout`, layers are
cut into other stages; workers are then rank:stage of that layout, and so are those that failed; `--split`
splits every micro-batch in two. With `--workers`, the cut is chosen: the fastest for so many workers; if some
of them are slow, they may get fewer layers too, and the plan says where they stand.
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.cli.options.layouts import NOT_IN_LAYERS, derived_job, layout_argument, missing_of
from recycle_compiler.cli.options.planning import (
    add_techniques_argument,
    load_for,
    planning,
    start_of,
    with_chosen_techniques,
)
from recycle_compiler.cli.options.plans import check_survivors, check_workers
from recycle_compiler.cli.options.views import add_view_arguments, deliver_view
from recycle_compiler.cli.values import Factors, positive, slow_workers_or_factors, workers
from recycle_compiler.frontend import LoadedJob
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.groups import AnyLayout, GroupedLayout
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import halved
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import percent, plural, time_text, unit_name
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.planner.groups import fastest_groups, why_no_groups
from recycle_compiler.planner.recut import RecutPlans, fastest_recut, why_own_cut
from recycle_compiler.planner.slow_layouts import slow_recut
from recycle_compiler.planner.slow_workers import SlowPlan
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.slow_workers import SlowWorkers, slow_workers
from recycle_compiler.viz.heading import holders_text
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
        "workers are then rank:stage of this layout. With + between them, groups of pipelines with cuts of "
        "their own, each with its micro-batches, as 12x2,11x2@24+23x1@8. What the table of `compile` prints "
        "is read too, in quotes: '8x4*2 7x5'",
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
    parser.add_argument(
        "--groups",
        action="store_true",
        help="with --workers: plan two groups of pipelines with cuts of their own, if that is faster; such a "
        "plan can be looked at, and no job begins with it",
    )
    parser.add_argument(
        "--slow",
        type=slow_workers_or_factors,
        default=(),
        metavar="P:S=X,P:S=X",
        help="workers whose ops take X times as long; they get fewer micro-batches. With --workers factors "
        "alone, as 3,1.5: so many of them are slow, and the cut is chosen for that",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --slow and -o FILE.plan: print the layout, the step time and where slow workers stand as "
        "JSON, with times in ticks",
    )
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
    job = start_of(with_chosen_techniques(loaded.spec, arguments.techniques), output)
    if arguments.workers is not None:
        _check_recut(arguments.workers, job, loaded)
    if arguments.split:
        _check_split(job, loaded.name)
    if arguments.workers is None:
        plans = [_plan(arguments, job, loaded.name, output)]
    elif arguments.slow:
        plans = [_fastest_for_slow(arguments, job, output)]
    else:
        plans = _fastest(arguments, job, output)
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
    others = [name for name in ("failed", "layout") if getattr(arguments, name)]
    if arguments.workers is not None and others:
        raise UsageError(f"--workers chooses the cut and who works: leave out --{others[0]}")
    _check_slow_usage(arguments)
    if arguments.failed is None and not arguments.slow and not arguments.layout and not arguments.workers:
        raise UsageError("the following arguments are required: --failed, --slow, --layout or --workers")
    if arguments.groups and (arguments.workers is None or arguments.slow or arguments.split):
        raise UsageError("--groups goes with --workers, without --slow and --split")
    if arguments.split and not (arguments.layout or arguments.workers):
        raise UsageError(
            "--split goes with --layout or --workers: under its own cut a job keeps its micro-batches whole"
        )


def _check_slow_usage(arguments: Namespace) -> None:
    is_nameless = isinstance(arguments.slow, Factors)
    if arguments.slow and arguments.workers is not None and not is_nameless:
        raise UsageError(
            "--workers chooses where workers stand: give --slow factors without names, as in --slow 3,1.5"
        )
    workers: int | None = arguments.workers
    if is_nameless and workers is None:
        raise UsageError("--slow must name the workers, as in --slow 1:2=3, unless --workers chooses the cut")
    if workers is not None and len(arguments.slow) >= workers:
        raise UsageError(f"--slow has {len(arguments.slow)} factors: not all of --workers can be slow")
    if arguments.json and not (arguments.slow and (arguments.out or "").endswith(".plan")):
        raise UsageError("--json goes with --slow and -o FILE.plan")


def _plan(arguments: Namespace, job: JobSpec, path: str, output: Output) -> Streams:
    """For these failed or slow workers, of the own cut or of a layout."""
    layout: AnyLayout | None = arguments.layout
    failed = failure_set(arguments.failed or ())
    slow = slow_workers(arguments.slow)
    if slow and isinstance(layout, GroupedLayout):
        raise UsageError("--slow is for layouts with one cut: groups have shares of their own")
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
    _tell_slow(found, slow, layout, arguments, output)
    return found.streams


def _tell_slow(
    found: SlowPlan, slow: SlowWorkers, layout: AnyLayout | None, arguments: Namespace, output: Output
) -> None:
    """Report the plan with slow workers, as text and with `--json` as data."""
    output.say(_with_slow(found, slow))
    if arguments.json:
        each = [
            {"worker": list(one.worker), "factor": float(one.factor), "microbatches": share}
            for one, share in zip(slow, found.shares, strict=True)
        ]
        under = None if layout is None else str(layout)
        output.data(json.dumps({"layout": under, "step_ticks": found.step, "slow": each}) + "\n")


def _fastest_for_slow(arguments: Namespace, job: JobSpec, output: Output) -> Streams:
    """Of the fastest cut for so many workers of which some are slow."""
    factors = [
        one.factor for one in slow_workers(((0, index), by) for index, by in enumerate(arguments.slow))
    ]
    names = [f"of factor {float(by):g}" for by in factors]
    _check_factors(zip(names, factors, strict=True), job)
    _check_rounds(names, job)
    guard = Guard(job.solver.time_limit_ns)
    with planning(job):
        found = slow_recut(job, arguments.workers, factors, guard, split=arguments.split)
    if found is None:
        raise _cannot_hold(job, arguments.workers, ", with no more slow ones on a stage than others")
    output.say(f"the fastest cut found for {plural(arguments.workers, 'worker')} is {found.layout}")
    _tell_slow(found.plan, found.slow, found.layout, arguments, output)
    return found.plan.streams


def _fastest(arguments: Namespace, job: JobSpec, output: Output) -> list[Streams]:
    """Of the fastest cut for so many workers: for all of them, and for one failure more on any stage."""
    workers: int = arguments.workers
    found = fastest_recut(job, workers, Guard(job.solver.time_limit_ns), split=arguments.split)
    if found is None:
        raise _cannot_hold(job, workers)
    recut, least = found
    period, bound = (f"{time_text(job, ticks)} {unit_name(job)}" for ticks in (recut.claims.period, least))
    output.say(
        f"the fastest cut found for {plural(workers, 'worker')} is {recut.layout}: a step takes {period}; "
        f"no cut{holders_text(job)} takes less than {bound}"
    )
    if arguments.groups:
        return _in_groups(job, workers, recut, output)
    return list(recut.plans)


def _in_groups(job: JobSpec, workers: int, recut: RecutPlans, output: Output) -> list[Streams]:
    """The plan of groups, if one is faster than this."""
    if why := why_no_groups(job):
        output.say(f"{job.name} cannot have groups of pipelines: {why}")
        return list(recut.plans)
    guard = Guard(job.solver.time_limit_ns)
    found = fastest_groups(job, workers, recut.claims.period, guard)
    if found is None:
        output.say("no groups of pipelines were found that are faster")
        return list(recut.plans)
    period = f"{time_text(job, found.plan.claims.period)} {unit_name(job)}"
    output.say(f"in groups of pipelines, {found.layout}, a step takes {period}")
    return [found.plan]


def _check_recut(workers: int, job: JobSpec, loaded: LoadedJob) -> None:
    """UserError if there is no cut to choose for so many workers; the job may start on fewer of them."""
    if job.layer_costs is None:
        raise UserError(f"{loaded.name}: {NOT_IN_LAYERS}")
    if why := why_own_cut(job):
        raise UserError(f"no other cut for {job.name}: {why}", NO_PLAN)
    most = max(job.present, loaded.spec.free_workers)
    if workers > most:
        raise UsageError(f"--workers must be at most {most}, the workers of the job, got {workers}")


def _cannot_hold(job: JobSpec, workers: int, note: str = "") -> UserError:
    assert job.layer_costs is not None, "a job in layers"
    layers = plural(job.layer_costs.count, "layer")
    return UserError(
        f"no plan for {job.name}: {plural(workers, 'worker')} cannot hold {layers}, each on "
        f"{job.redundancy} of them{note}",
        NO_PLAN,
    )


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
    _check_factors(((str(one.worker), one.factor) for one in slow), job)
    _check_rounds([str(one.worker) for one in slow], job)
    if slow and not job.techniques.adaptive:
        raise UserError(
            f"worker {slow[0].worker} cannot have less to do: without the technique `adaptive` "
            "every micro-batch stays in its pipeline; add it, or leave out --slow"
        )


def _check_rounds(slow: Sequence[str], job: JobSpec) -> None:
    """Of workers that are slow, by name."""
    if slow and job.slots:
        raise UserError(
            f"worker {slow[0]} cannot have less to do: workers that share experts meet in rounds, and each "
            "round waits for the slowest of them; leave out --slow"
        )


def _check_factors(factors: Iterable[tuple[str, Fraction]], job: JobSpec) -> None:
    """Each with the name of its worker."""
    longest = max(*job.forward, *job.backward_input, *job.backward_weight, *job.optimizer)
    work = 8 * longest * job.pipelines * job.microbatches * job.stages
    if wild := [name for name, factor in factors if factor * work > _LARGEST]:
        raise UsageError(f"worker {wild[0]} is so slow that its times are too large to plan")


def _with_slow(found: SlowPlan, slow: SlowWorkers) -> str:
    """Text with the time of a step and the micro-batches of the slow workers."""
    job = found.streams.job
    who = ", ".join(f"{one.worker} {float(one.factor):g} times" for one in slow)
    step, equal = time_text(job, found.step), time_text(job, found.equal_step)
    each = ", ".join(f"{one.worker} has {share}" for one, share in zip(slow, found.shares, strict=True))
    total = job.pipelines * job.microbatches
    return (
        f"with {who} slower a step takes {step} {unit_name(job)} (with equal shares {equal}); "
        f"{each} of {total} micro-batches"
    )
