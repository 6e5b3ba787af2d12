"""Options: which plan of a bundle."""

from argparse import ArgumentParser, Namespace

from recycle_compiler.cli.bundles import read_bundle, read_bundle_job, read_plan
from recycle_compiler.cli.options.files import add_bundle_argument
from recycle_compiler.cli.values import count, workers
from recycle_compiler.ir.failure import FailureSet, Worker, failed_per_stage, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import plural
from recycle_compiler.passes.rename_workers import RenameWorkers
from recycle_runtime.cli.output import NO_PLAN, Output, UsageError, UserError
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.moves import least_moves


def add_plan_arguments(parser: ArgumentParser) -> None:
    """A bundle, and one of its plans."""
    add_bundle_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--failures", type=count, metavar="N", help="the plan for this number of failures (default: 0)"
    )
    which.add_argument(
        "--failed", type=workers, metavar="P:S,P:S", help="the plan for these failed workers, pipeline:stage"
    )


def pick_plan(arguments: Namespace, output: Output) -> Streams:
    """The plan for a number of failures, or for exactly these workers."""
    path: str = arguments.bundle
    bundle = read_bundle(path)
    if arguments.failed is None:
        return read_plan(bundle, path, _index_for(bundle, arguments.failures))
    wanted = failure_set(arguments.failed)
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
    counts = [len(plan.failed) for plan in bundle.plans]
    if failures is None:
        failures = counts[0] if len(counts) == 1 else 0
    if failures not in counts:
        held = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        raise UsageError(f"no plan for {plural(failures, 'failure')}: the bundle plans for {held}")
    return counts.index(failures)


def _moves(streams: Streams, wanted: FailureSet) -> dict[Worker, Worker]:
    """Who takes which failed worker's place so that the plan fits: what a running job would do."""
    job = streams.job
    grid = (Worker(pipeline, stage) for stage in range(job.stages) for pipeline in range(job.pipelines))
    live = [worker for worker in grid if worker not in wanted]
    moves = least_moves(live, failed_per_stage(streams.failed, job.stages), job.pipelines)
    return {Worker(*mover): Worker(*place) for mover, place in moves.items()}


def _after(moves: dict[Worker, Worker], wanted: FailureSet) -> FailureSet:
    """The places that are empty once all workers have moved."""
    return failure_set((set(wanted) - set(moves.values())) | set(moves))


def _advice(streams: Streams, moves: dict[Worker, Worker]) -> str:
    """How to get from the actual failures to those that the plan is for."""
    planned = failed_per_stage(streams.failed, streams.job.stages)
    becomes = ", ".join(f"worker {mover} becomes {place}" for mover, place in moves.items())
    return (
        f"the bundle plans {plural(len(streams.failed), 'failure')} as {_on_stages(planned)}; "
        f"to use this plan, {becomes} and all others stay; "
        f"or run `recyclec plan` for exactly this pattern"
    )


def _on_stages(per_stage: tuple[int, ...]) -> str:
    return ", ".join(f"{count} on stage {stage}" for stage, count in enumerate(per_stage) if count)
