"""`recyclec diff PLAN TRACE`: where the time of a real run went, against its plan."""

import os
from collections.abc import Sequence
from itertools import chain

from recycle_compiler.analysis.trace_diff.comparison import NoSuchStep, TraceComparison, compare_with_run
from recycle_compiler.analysis.trace_diff.matching import failed_in, renamed
from recycle_compiler.analysis.trace_diff.network import without_end
from recycle_compiler.analysis.trace_diff.torch_profiler import RankGrid, is_profile, trace_of_profiles
from recycle_compiler.analysis.trace_diff.trace_file import RunTrace, TraceError, read_json, trace_in
from recycle_compiler.cli.bundles import read_bundle, read_plan, schedule_of
from recycle_compiler.ir.bundled import layout_name
from recycle_compiler.ir.failure import FailureSet, Worker
from recycle_compiler.ir.schedule import Schedule, measured
from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_choice import NoFittingPlanError, choose_plan

_LISTED = 8
"""Failed workers that a message names."""


def compare_bundle(path: str, trace_path: str, step: int | None) -> TraceComparison:
    """The plan of a bundle that the run has used, beside the run."""
    bundle = read_bundle(path)
    trace = _trace(trace_path, RankGrid(bundle.pipelines, bundle.stages, bundle.tensor, bundle.owners > 0))
    if len(trace.generations) > 1:
        return _compare_generation(bundle, path, trace, trace_path, step)
    failed = _failed(trace, trace_path, bundle.pipelines, bundle.stages)
    try:
        choice = choose_plan(bundle, failed)
    except NoFittingPlanError as error:
        raise UserError(f"{path}: the run of {trace_path} had {_named(failed)} failed: {error}") from error
    schedule = _schedule(bundle, path, choice.plan)
    roles = {Worker(*place): Worker(*role) for place, role in choice.roles.items()}
    return _compare(renamed(schedule, roles), trace, trace_path, step)


def _compare_generation(
    bundle: Bundle, path: str, trace: RunTrace, trace_path: str, step: int | None
) -> TraceComparison:
    """Of a run that has had several plans, one group of workers with its plan."""
    number = _asked(trace, step)
    generation, part = trace.generations[number], trace.of(number)
    if not part.ops:
        raise UsageError(f"{trace_path}: the trace has steps {_span(trace.steps)}")
    found = _named_plan(bundle, generation.plan)
    if found is None:
        raise UserError(
            f"{path}: has no plan {generation.plan}, which steps {_span(part.steps)} of {trace_path} have "
            "run: it was made during the run"
        )
    cut, plan = found
    # Workers on standby run no op of the plan but what peers do together.
    planned = {Worker(*worker) for worker in cut.workers(plan)}
    if missing := sorted(planned - set(part.workers)):
        who = next((name for name, role in generation.roles.items() if role == missing[0]), missing[0])
        raise UserError(
            f"{trace_path}: worker {who} has left no track of steps {_span(part.steps)}: it failed before "
            "the run ended; --step names another step"
        )
    ops = tuple(op for op in part.ops if op.worker in planned)
    return _compare(_schedule(cut, path, plan), RunTrace(ops, None, part.data), trace_path, step)


def _asked(trace: RunTrace, step: int | None) -> int:
    """The generation that a step belongs to; without one, the last that has run any."""
    begun = [
        number
        for number, each in enumerate(trace.generations)
        if (trace.of(number).ops if step is None else each.first <= step)
    ]
    return max(begun, default=len(trace.generations) - 1)


def _named_plan(bundle: Bundle, name: str) -> tuple[Bundle, int] | None:
    """The cut and the number of a plan that a run has called so."""
    for cut in (bundle, *bundle.recuts):
        for number, plan in enumerate(cut.plans):
            failed = [sum(at == stage for _, at in plan.failed) for stage in range(cut.stages)]
            called = " ".join(map(str, failed)) if cut is bundle else layout_name(bundle, cut, number)
            if called == name:
                return cut, number
    return None


def _span(steps: Sequence[int]) -> str:
    return f"{steps[0]} to {steps[-1]}"


def _schedule(bundle: Bundle, path: str, plan: int) -> Schedule:
    schedule = schedule_of(read_plan(bundle, path, plan), path)
    if measured(schedule) != (schedule.claims.makespan, schedule.claims.period):
        raise UserError(f"{path}: the plan does not take as long as it claims; `recyclec verify` says more")
    return schedule


def compare_text(schedule: Schedule, path: str, trace_path: str, step: int | None) -> TraceComparison:
    """The text of one schedule beside a run of it."""
    broken = next(chain(schedule.verify(), without_end(schedule)), None)
    if broken is not None:
        raise UserError(f"{path}: not a schedule that can run: {broken}")
    job = schedule.job
    trace = _trace(trace_path, RankGrid(job.pipelines, job.stages, job.tensor, job.owners > 0))
    failed = _failed(trace, trace_path, schedule.job.pipelines, schedule.job.stages)
    if failed != schedule.failed:
        raise UserError(
            f"{trace_path}: a run with other failures: it had {_named(failed)} failed, "
            f"{path} is for {_named(schedule.failed)}"
        )
    return _compare(schedule, trace, trace_path, step)


def _trace(path: str, grid: RankGrid) -> RunTrace:
    """That of a run, or those that torch's profiler has left, a file or a folder with one for each rank."""
    files = [path]
    if os.path.isdir(path):
        files = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".json"))
        if not files:
            raise UserError(f"{path}: the folder has no *.json; torch's profiler writes one for each rank")
    try:
        found = [read_json(file) for file in files]
        if all(is_profile(whole) for whole in found):
            return trace_of_profiles(found, grid)
        if len(found) > 1:
            raise TraceError("a folder holds profiles of torch alone, one for each rank")
        return trace_in(found[0])
    except TraceError as error:
        raise UserError(f"{path}: {error}") from error


def _failed(trace: RunTrace, path: str, pipelines: int, stages: int) -> FailureSet:
    try:
        return failed_in(trace, pipelines, stages)
    except TraceError as error:
        raise UserError(f"{path}: {error}") from error


def _compare(schedule: Schedule, trace: RunTrace, path: str, step: int | None) -> TraceComparison:
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
