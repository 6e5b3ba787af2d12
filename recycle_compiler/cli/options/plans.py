"""Options: which plan of a bundle; of a job in layers, under which cut."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from typing import Literal

from recycle_compiler.cli.bundles import read_bundle, read_bundle_job, read_plan
from recycle_compiler.cli.options.files import add_bundle_argument
from recycle_compiler.cli.options.layouts import layout_argument
from recycle_compiler.cli.values import count, workers
from recycle_compiler.ir.failure import FailureSet, Worker, failed_per_stage, failure_set
from recycle_compiler.ir.groups import AnyLayout, any_layout_of, grouped_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import layout_of
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import plural, time_text, unit_name
from recycle_compiler.passes.rename_workers import RenameWorkers
from recycle_runtime.cli.output import NO_PLAN, Output, UsageError, UserError
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.moves import least_moves

OWN: Literal["own"] = "own"
FASTEST: Literal["fastest"] = "fastest"
_FEW_STAGES = 12
"""Up to this many, the layers of each are named."""
_FEW_LAYOUTS = 12
"""Up to this many are listed."""


@dataclass(frozen=True, slots=True)
class Picked:
    """A plan of a bundle."""

    bundle: Bundle
    """The whole file."""
    streams: Streams
    cut: int | None
    """The number of the other cut that it is under; None for the job's own."""
    failures: int
    """Number of failures that was asked for; a cut may be for fewer workers than they leave."""


def add_plan_arguments(parser: ArgumentParser, default_cut: str = FASTEST) -> None:
    """A bundle, and one of its plans."""
    add_bundle_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--failures", type=count, metavar="N", help="the plan for this number of failures (default: 0)"
    )
    which.add_argument(
        "--failed",
        type=workers,
        metavar="P:S,P:S",
        help="the plan for these failed workers, pipeline:stage, under the job's own cut",
    )
    cuts = parser.add_mutually_exclusive_group()
    cuts.add_argument(
        "--cut",
        type=_cut_argument,
        metavar="own|fastest|N",
        help="of a job in layers, how its layers are cut into stages: as the job says, as the fastest plan "
        f"for so many workers has it, or the Nth other cut of the bundle (default: {default_cut})",
    )
    cuts.add_argument(
        "--layout",
        type=layout_argument,
        metavar="LxW,LxW",
        help="the cut with these layers x workers, as 8x4,8x4,7x5 or as the table of `compile` prints it, in "
        "quotes: '8x4*2 7x5'",
    )


def _cut_argument(word: str) -> str | int:
    if word in (OWN, FASTEST):
        return word
    try:
        return count(word)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"must be own, fastest, or the number of a cut, got {word}") from None


def pick_plan(arguments: Namespace, output: Output, default_cut: str = FASTEST) -> Picked:
    """The plan for a number of failures, or for exactly these workers."""
    path: str = arguments.bundle
    bundle = read_bundle(path)
    cut: str | int = default_cut if arguments.cut is None else arguments.cut
    if arguments.failed is not None:
        if arguments.layout is not None or arguments.cut not in (None, OWN):
            raise UsageError("--failed names workers of the job's own cut: leave out --cut and --layout")
        streams = _for_workers(bundle, path, failure_set(arguments.failed), output)
        return Picked(bundle, streams, None, len(streams.failed))
    if arguments.layout is not None:
        return _with_layout(bundle, path, arguments.layout, arguments.failures)
    if isinstance(cut, int):
        return _under(bundle, path, cut, arguments.failures)
    index = _index_for(bundle, arguments.failures)
    failures = len(bundle.plans[index].failed)
    faster = _faster_cut(bundle, index) if cut == FASTEST else None
    if faster is None:
        return Picked(bundle, read_plan(bundle, path, index), None, failures)
    picked = Picked(bundle, read_plan(bundle.recuts[faster], path, 0), faster, failures)
    if arguments.cut is None:
        output.say(_about_cut(picked, read_plan(bundle, path, index)))
    return picked


def fastest_streams(bundle: Bundle, path: str, index: int) -> Streams:
    """The fastest plan for as many failures as this one is for, under whichever cut."""
    faster = _faster_cut(bundle, index)
    return read_plan(bundle, path, index) if faster is None else read_plan(bundle.recuts[faster], path, 0)


def live_workers(bundle: Bundle, plan: int) -> int:
    """Number of workers that a plan of a bundle needs."""
    return bundle.stages * bundle.pipelines - len(bundle.plans[plan].failed)


def _faster_cut(bundle: Bundle, plan: int) -> int | None:
    """The other cut under which the workers of a plan are fastest; None where that is the own cut."""
    number = bundle.fastest_recut(live_workers(bundle, plan), groups=True)
    if number is None or bundle.recuts[number].plans[0].period >= bundle.plans[plan].period:
        return None
    return number


def _under(bundle: Bundle, path: str, number: int, failures: int | None) -> Picked:
    """The plan under another cut; with one worker fewer than it is for, the plan that covers that."""
    if number >= len(bundle.recuts):
        held = f"cuts 0 to {len(bundle.recuts) - 1}" if bundle.recuts else "no plans under other cuts"
        raise UsageError(f"no cut {number}: {path} has {held}")
    recut = bundle.recuts[number]
    needed = live_workers(recut, 0)
    whole = bundle.stages * bundle.pipelines
    live = needed if failures is None else bundle.present - failures
    if live >= needed:
        return Picked(bundle, read_plan(recut, path, 0), number, whole - live)
    if live == needed - 1 and len(recut.plans) > 1:
        return Picked(bundle, read_plan(recut, path, 1), number, whole - live)
    raise UsageError(
        f"no plan for {plural(failures or 0, 'failure')} under cut {number}: it is for {needed} workers, "
        f"and {max(0, live)} are left"
    )


def _with_layout(bundle: Bundle, path: str, layout: AnyLayout, failures: int | None) -> Picked:
    """The plan with this layout: of another cut as it begins, or of the job's own with some failures."""
    others = [_layouts(one, path)[0] for one in bundle.recuts]
    if layout in others:
        return _under(bundle, path, others.index(layout), failures)
    own = _layouts(bundle, path)
    if layout not in own:
        held = [str(one) for one in (*own, *others) if one is not None]
        more = f" and {len(held) - _FEW_LAYOUTS} more" if len(held) > _FEW_LAYOUTS else ""
        listed = "; ".join(held[:_FEW_LAYOUTS]) or "no plan that has a layout"
        raise UsageError(f"no plan for --layout {layout}: {path} has {listed}{more}")
    index = own.index(layout)
    planned = len(bundle.plans[index].failed)
    live = live_workers(bundle, index)
    if failures is not None and bundle.present - failures < live:
        raise UsageError(
            f"no plan for {plural(failures, 'failure')} under --layout {layout}: it is for "
            f"{live} workers, and {max(0, bundle.present - failures)} are left"
        )
    return Picked(bundle, read_plan(bundle, path, index), None, planned)


def _layouts(bundle: Bundle, path: str) -> list[AnyLayout | None]:
    """Of each plan; None where the job has no layers."""
    job = read_bundle_job(bundle, path)
    return [any_layout_of(job, failure_set(plan.failed)) for plan in bundle.plans]


def _about_cut(picked: Picked, own: Streams) -> str:
    """Note for users who asked for no cut, where the plan is under another one."""
    job = own.job
    halves = ", every micro-batch split in two" if picked.streams.job.parts == 2 else ""
    period, own_period = (time_text(job, one.claims.period) for one in (picked.streams, own))
    return (
        f"{_how_cut(picked.streams, job)}: a step takes {period} {unit_name(job)} instead of "
        f"{own_period} with {plural(job.workers - len(own.failed), 'worker')}{halves}; `--cut own` gives the "
        "plan for the cut that the job starts with"
    )


def _how_cut(streams: Streams, job: JobSpec) -> str:
    """Description of the cut that a plan under another cut has in place of the job's stages."""
    if (groups := grouped_layout_of(streams.job, streams.failed)) is not None:
        shares = " and ".join(map(str, groups.shares))
        return (
            f"here the pipelines form {len(groups.groups)} groups with cuts of their own, which have "
            f"{shares} micro-batches"
        )
    layout = layout_of(streams.job, streams.failed)
    assert layout is not None, "a plan under another cut is of a job in layers"
    return _other_stages(layout.layers, job.cut)


def _other_stages(cut: tuple[int, ...], own: tuple[int, ...]) -> str:
    """Description of the stages that a plan under another cut has, and of the job's."""
    if max(len(cut), len(own)) > _FEW_STAGES:
        here, there = f"into {plural(len(cut), 'stage')}", str(len(own))
    else:
        here, there = (" + ".join(map(str, layers)) for layers in (cut, own))
        here = f"as {here}"
    return f"here the {sum(cut)} layers of the model are cut into stages otherwise, {here} instead of {there}"


def _for_workers(bundle: Bundle, path: str, wanted: FailureSet, output: Output) -> Streams:
    """The plan for exactly these failed workers, or the one that a running job would move to."""
    check_workers(wanted, bundle.pipelines, bundle.stages)
    check_survivors(wanted, read_bundle_job(bundle, path))
    exact = bundle.find(failed_per_stage(wanted, bundle.stages))
    if exact is not None:
        # Peers are interchangeable, so equal counts per stage are the same plan under other names.
        return RenameWorkers(wanted).run(read_plan(bundle, path, exact))
    streams = read_plan(bundle, path, _index_for(bundle, len(wanted)))
    moves = _moves(streams, wanted)
    output.say(_advice(streams, moves))
    return RenameWorkers(_after(moves, wanted)).run(streams)


def check_workers(failed: FailureSet, pipelines: int, stages: int) -> None:
    """Workers that a user names must exist."""
    for worker in failed:
        if worker.pipeline >= pipelines or worker.stage >= stages:
            raise UsageError(
                f"worker {worker} does not exist: pipelines are 0 to {pipelines - 1}, "
                f"stages 0 to {stages - 1} (written pipeline:stage)"
            )


def check_survivors(failed: FailureSet, job: JobSpec) -> None:
    """A stage whose workers have all failed cannot be planned around."""
    for stage, gone in enumerate(failed_per_stage(failed, job.stages)):
        if gone == job.pipelines:
            why = f"stage {stage} has no live worker: all {gone} of its workers failed"
            raise UserError(f"no plan for {job.name}: {why}", NO_PLAN)


def _index_for(bundle: Bundle, failures: int | None) -> int:
    counts = [len(plan.failed) - len(bundle.vacant) for plan in bundle.plans]
    if failures is None:
        failures = counts[0] if len(counts) == 1 else 0
    if failures not in counts:
        held = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        raise UsageError(f"no plan for {plural(failures, 'failure')}: the bundle plans for {held}")
    return counts.index(failures)


def _moves(streams: Streams, wanted: FailureSet) -> dict[Worker, Worker]:
    """Place of a failed worker that each mover takes so that the plan fits, as a running job would do it."""
    job = streams.job
    grid = (Worker(pipeline, stage) for stage in range(job.stages) for pipeline in range(job.pipelines))
    live = [worker for worker in grid if worker not in wanted]
    moves = least_moves(live, failed_per_stage(streams.failed, job.stages), job.pipelines)
    return {Worker(*mover): Worker(*place) for mover, place in moves.items()}


def _after(moves: dict[Worker, Worker], wanted: FailureSet) -> FailureSet:
    """The places that are empty once all workers have moved."""
    return failure_set((set(wanted) - set(moves.values())) | set(moves))


def _advice(streams: Streams, moves: dict[Worker, Worker]) -> str:
    """Instructions for getting from the actual failures to those that the plan is for."""
    planned = failed_per_stage(streams.failed, streams.job.stages)
    becomes = ", ".join(f"worker {mover} becomes {place}" for mover, place in moves.items())
    return (
        f"the bundle plans {plural(len(streams.failed), 'failure')} as {_on_stages(planned)}; "
        f"to use this plan, {becomes} and all others stay; "
        f"or run `recyclec plan` for exactly this pattern"
    )


def _on_stages(per_stage: tuple[int, ...]) -> str:
    return ", ".join(f"{count} on stage {stage}" for stage, count in enumerate(per_stage) if count)
