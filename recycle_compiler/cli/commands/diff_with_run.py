"""`recyclec diff PLAN TRACE`: where the time of a real run went, against its plan."""

from itertools import chain

from recycle_compiler.analysis.trace_diff.comparison import Comparison, NoSuchStep, compare_with_run
from recycle_compiler.analysis.trace_diff.matching import failed_in, renamed
from recycle_compiler.analysis.trace_diff.network import without_end
from recycle_compiler.analysis.trace_diff.trace_file import Trace, TraceError, read_trace
from recycle_compiler.cli.bundles import read_bundle, read_plan, schedule_of
from recycle_compiler.ir.failure import FailureSet, Worker
from recycle_compiler.ir.schedule import Schedule, measured
from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.plan.plan_choice import NoPlanError, choose_plan

_LISTED = 8
"""Failed workers that a message names."""


def compare_bundle(path: str, trace_path: str, step: int | None) -> Comparison:
    """The plan of a bundle that the run has used, beside the run."""
    bundle, trace = read_bundle(path), _trace(trace_path)
    failed = _failed(trace, trace_path, bundle.pipelines, bundle.stages)
    try:
        choice = choose_plan(bundle, failed)
    except NoPlanError as error:
        raise UserError(f"{path}: the run of {trace_path} had {_named(failed)} failed: {error}") from error
    schedule = schedule_of(read_plan(bundle, path, choice.plan), path)
    if measured(schedule) != (schedule.claims.makespan, schedule.claims.period):
        raise UserError(f"{path}: the plan does not take as long as it claims; `recyclec verify` says more")
    roles = {Worker(*place): Worker(*role) for place, role in choice.roles.items()}
    return _compare(renamed(schedule, roles), trace, trace_path, step)


def compare_text(schedule: Schedule, path: str, trace_path: str, step: int | None) -> Comparison:
    """The text of one schedule beside a run of it."""
    broken = next(chain(schedule.verify(), without_end(schedule)), None)
    if broken is not None:
        raise UserError(f"{path}: not a schedule that can run: {broken}")
    trace = _trace(trace_path)
    failed = _failed(trace, trace_path, schedule.job.pipelines, schedule.job.stages)
    if failed != schedule.failed:
        raise UserError(
            f"{trace_path}: a run with other failures: it had {_named(failed)} failed, "
            f"{path} is for {_named(schedule.failed)}"
        )
    return _compare(schedule, trace, trace_path, step)


def _trace(path: str) -> Trace:
    try:
        return read_trace(path)
    except TraceError as error:
        raise UserError(f"{path}: {error}") from error


def _failed(trace: Trace, path: str, pipelines: int, stages: int) -> FailureSet:
    try:
        return failed_in(trace, pipelines, stages)
    except TraceError as error:
        raise UserError(f"{path}: {error}") from error


def _compare(schedule: Schedule, trace: Trace, path: str, step: int | None) -> Comparison:
    try:
        return compare_with_run(schedule, trace, step)
    except TraceError as error:
        raise UserError(f"{path}: {error}") from error
    except NoSuchStep as error:
        raise UsageError(f"{path}: {error}") from error


def _named(failed: FailureSet) -> str:
    names = [str(worker) for worker in failed[:_LISTED]]
    if len(failed) > _LISTED:
        names.append(f"and {len(failed) - _LISTED} more")
    return ", ".join(names) or "none"
