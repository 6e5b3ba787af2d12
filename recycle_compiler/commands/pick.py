"""Which plan of a bundle was asked for."""

from recycle_compiler.commands.bundles import read_plan
from recycle_compiler.commands.output import USAGE, Output, UserError
from recycle_compiler.ir.failure import FailureSet, Worker, failed_per_stage, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.program import Program
from recycle_compiler.passes.normalize_failures import relabel
from recycle_compiler.viz.units import plural
from recycle_runtime.bundle import Bundle


def pick_plan(
    bundle: Bundle,
    path: str,
    failures: int | None,
    failed: tuple[tuple[int, int], ...] | None,
    output: Output,
) -> Program:
    """The plan for a number of failures, or for exactly these workers."""
    if failed is None:
        return read_plan(bundle, path, _index_for(bundle, failures))
    wanted = failure_set(failed)
    check_workers(wanted, bundle.pipelines, bundle.stages)
    exact = bundle.find(failed_per_stage(wanted, bundle.stages))
    if exact is not None:
        # Peers are interchangeable, so equal counts per stage are the same plan under other names.
        return relabel(read_plan(bundle, path, exact), wanted)
    program = read_plan(bundle, path, _index_for(bundle, len(wanted)))
    output.say(_advice(program, wanted))
    return program


def check_workers(failed: FailureSet, pipelines: int, stages: int) -> None:
    """Workers that a user names must exist."""
    for worker in failed:
        if worker.pipeline >= pipelines or worker.stage >= stages:
            raise UserError(
                f"worker {worker} does not exist: pipelines are 0 to {pipelines - 1}, "
                f"stages 0 to {stages - 1} (written pipeline:stage)",
                USAGE,
            )


def _index_for(bundle: Bundle, failures: int | None) -> int:
    counts = [len(plan.failed) for plan in bundle.plans]
    if failures is None:
        failures = counts[0] if len(counts) == 1 else 0
    if failures not in counts:
        held = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        raise UserError(f"no plan for {plural(failures, 'failure')}: the bundle plans for {held}", USAGE)
    return counts.index(failures)


def _advice(program: Program, wanted: FailureSet) -> str:
    """How to get from the failures of the day to the ones that the plan is for."""
    # Loading the flow solver takes longer than all the rest.
    from recycle_compiler.passes.match_moves import least_moves

    job = program.job
    actual, planned = failed_per_stage(wanted, job.stages), failed_per_stage(program.failed, job.stages)
    return (
        f"the bundle plans {plural(len(wanted), 'failure')} as {_on_stages(planned)}; "
        f"move {_movers(wanted, least_moves(actual, planned, job), job)} to use it, "
        f"or run `recyclec plan` for exactly this pattern"
    )


def _movers(failed: FailureSet, moves: tuple[tuple[int, int], ...], job: JobSpec) -> str:
    """Names a live worker for each move between stages; any peer would do."""
    taken = set(failed)
    told: list[str] = []
    for source, target in moves:
        peers = (Worker(pipeline, source) for pipeline in range(job.pipelines))
        mover = next(worker for worker in peers if worker not in taken)
        taken.add(mover)
        told.append(f"worker {mover} to stage {target}")
    return ", ".join(told)


def _on_stages(per_stage: tuple[int, ...]) -> str:
    return ", ".join(f"{count} on stage {stage}" for stage, count in enumerate(per_stage) if count)
