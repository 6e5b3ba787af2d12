"""From a job to plans: one plan for every number of failures, or one for an exact failure pattern."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from recycle_compiler.ir.failure import FailureSet, failed_per_stage, normal_form
from recycle_compiler.ir.groups import AnyLayout
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.add_worker import AddWorker
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.pipeline import Observer, PassDone
from recycle_compiler.passes.rename_workers import RenameWorkers
from recycle_compiler.passes.standard import LOWERING_PASSES, all_passes
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.layouts import Layouts
from recycle_compiler.planner.placement import FailureCosts, measure_costs, place_ahead, ranked_placements
from recycle_compiler.planner.slow_workers import SlowPlan, best_for_slow
from recycle_compiler.planner.spread import CANDIDATES, least_mean, tries_seeds
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.budget import Guard, Sizes
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.scheduling.slow_workers import SlowWorkers

_AHEAD = 980
"""A large plan of the own cut gets less work where the bound over all cuts is below these thousandths of its
own."""


class NoPlanError(Exception):
    """No schedule exists: one sentence says why."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """One row of the table that `recyclec compile` ends with; times in ticks."""

    failures: int
    failed_per_stage: tuple[int, ...]
    period: int
    makespan: int
    lower_bound: int
    gap: float
    status: str
    seconds: float
    against_1f1b: float
    """Iterations per hour, as a share of fault-free 1F1B's."""
    cut_short: bool
    layout: AnyLayout | None = None
    """Of a job in layers: the cut and workers of this plan, which may be another cut than the job's own."""
    split: int = 1
    """Into how many parts, one or two, its plan splits every micro-batch."""
    bound_over_cuts: int = 0
    own_period: int = 0
    """Of the plan under the own cut."""


OnPlan = Callable[[PlanSummary, int, int], None]
"""Called after each plan with its summary, how many are done, and how many there are."""


def compile_job(
    job: JobSpec,
    *,
    failures: int | None = None,
    processes: int = 1,
    recut: bool = False,
    on_plan: OnPlan | None = None,
    observers: Sequence[Observer] = (),
    guard: Guard | None = None,
) -> list[Streams]:
    """Plans for 0 up to `failures` failed workers (default: the job's tolerance), beside vacant cells.

    Each plan is made on its own, so the result does not depend on the number of processes. Where one is
    slower than the plan for one failure more, that plan takes its place, with one worker more. With `recut`,
    plans under other cuts follow. Observers see every pass of every plan, which needs a single process. The
    plan without failures is made first: when the guard strikes, others suffer.
    """
    most = job.failures if failures is None else job.vacant + failures
    check_survivable(job, most)
    total = most - job.vacant + 1
    guard = guard or Guard(job.solver.time_limit_ns)
    baseline = one_f_one_b_period(job)
    plans: dict[int, Streams] = {}
    processes = 1 if observers or total == 1 else processes
    with running(processes) as run:
        same = guard, tuple(observers), recut, Effort().shared(total)
        early = measure_costs(job, most, run, guard) if job.vacant else None
        first: list[_Made] = [*run(_timed_plan, [_Task(job, job.vacant, early, *same)])]
        costs = place_ahead(job, early or measure_costs(job, most, run, guard), most, run, guard)
        # Those with most failures take longest, so they are started first.
        tasks = (_Task(job, count, costs, *same) for count in range(most, job.vacant, -1))
        waiting: dict[int, _Made] = {}
        for made in chain(first, run(_timed_plan, tasks)):
            waiting[len(made.plan.failed)] = made
            while (next_count := most - len(plans)) in waiting:
                plan, seconds = waiting.pop(next_count)
                more = plans.get(next_count + 1)
                if more is not None and _is_slower(plan, more):
                    plan = _relieved(plan, more, observers, guard)
                plans[next_count] = plan
                if on_plan is not None:
                    on_plan(summary(plan, seconds, baseline), len(plans), total)
    return [plans[count] for count in sorted(plans)]


def plan_failed(
    job: JobSpec,
    failed: FailureSet,
    observers: Sequence[Observer] = (),
    effort: Effort | None = None,
    guard: Guard | None = None,
) -> Streams:
    """The plan for exactly these failed workers; no worker moves to another stage.

    Without an effort given, it is planned quickly, as for a job that waits.
    """
    for stage, hosts in enumerate(Target(job, failed).normal.hosts):
        if not hosts:
            who = "its only worker" if job.pipelines == 1 else f"all {job.pipelines} of its workers"
            raise NoPlanError(f"stage {stage} has no live worker: {who} failed")
    left = job.left_by(failed_per_stage(failed, job.stages))
    for stage, room in enumerate(left.capacity):
        needed = sum(left.activation[chunk] for chunk in left.held[stage][:1])
        if job.sharding is not None and room is not None and room < needed:
            raise NoPlanError(
                f"stage {stage} has no room for a micro-batch: its workers that are left own too much of the "
                "sharded state"
            )
    if (chunk := left.short_of_slots) is not None:
        raise NoPlanError(
            f"stage {left.chunk_stages[chunk]} has too few slots: its {left.expert_counts[chunk]} experts "
            f"need as many, and each of its workers that are left has {job.slots}"
        )
    slots = AssignSlots(effort or Effort().prompt(), guard)
    passes = all_passes(slots) >> RenameWorkers(failed)
    plan = passes.run(Target(job, failed), observers)
    if observers or not tries_seeds(job):
        return plan
    others = (passes.run(Target(_with_seed(job, more), failed)) for more in range(1, CANDIDATES))
    return least_mean([plan, *(replace(other, job=job) for other in others)])


def _with_seed(job: JobSpec, more: int) -> JobSpec:
    return replace(job, solver=replace(job.solver, seed=job.solver.seed + more))


def plan_slow(
    job: JobSpec,
    failed: FailureSet,
    slow: SlowWorkers,
    effort: Effort | None = None,
    guard: Guard | None = None,
) -> SlowPlan:
    """The plan for exactly these failed workers in which slow ones have fewer micro-batches, if that helps.

    The job has to be adaptive: else no micro-batch can leave its home. One time limit holds for all of it.
    """
    if not job.techniques.adaptive:
        raise ValueError("without the technique `adaptive` every pipeline keeps its micro-batches")
    effort = effort or Effort().prompt()
    guard = guard or Guard(job.solver.time_limit_ns)
    schedules: list[Schedule] = []

    def keep(step: PassDone) -> None:
        if isinstance(step.value, Schedule):
            schedules.append(step.value)

    equal = plan_failed(job, failed, (keep,), effort, guard)
    return best_for_slow(equal, schedules[-1], slow, effort, guard)


def plan_count(
    job: JobSpec,
    failures: int,
    costs: FailureCosts | None,
    guard: Guard,
    observers: Sequence[Observer] = (),
    *,
    recut: bool = False,
    effort: Effort | None = None,
) -> Streams:
    """The plan for this many failures, on the stages that carry them best.

    With `recut`, plans under other cuts follow. Without failures, no costs are needed.
    """
    effort = effort or Effort()
    if failures == 0 or costs is None:
        return plan_failed(job, (), observers, effort, guard)
    best: Streams | None = None
    ranked = ranked_placements(job, failures, costs, effort, guard)
    if not ranked:
        raise NoPlanError(_no_room(job, failures))
    is_costly = costs.healthy.ops > Sizes.LARGE
    is_behind = recut and is_costly and _is_behind(job, failures, min(bound for _, bound in ranked))
    effort = effort.brief() if is_behind else effort
    for counts, bound in ranked[:1] if is_behind else ranked:
        if best is not None and (bound >= best.claims.period or guard.strikes()):
            continue
        plan = plan_failed(job, normal_form(counts, job.pipelines), (), effort, guard)
        if best is None or plan.claims.period < best.claims.period:
            best = plan
    assert best is not None, "failures that can be survived can be placed"
    best = plan_failed(job, best.failed, observers, effort, guard) if observers else best
    return _cut_short(best) if guard.struck else best


def _relieved(plan: Streams, more: Streams, observers: Sequence[Observer], guard: Guard) -> Streams:
    """The plan for one failure more with a worker more, where that is no slower: one failure fewer never is,
    but where more peers send more tokens to each other."""
    if guard.strikes():
        return _cut_short(plan)
    return min((AddWorker(plan.failed) >> LOWERING_PASSES).run(more, observers), plan, key=_period_of)


def _period_of(plan: Streams) -> int:
    return plan.claims.period


def _cut_short(plan: Streams) -> Streams:
    """The plan, known to be one that the time limit has kept from being better."""
    return replace(plan, claims=replace(plan.claims, cut_short=True))


def _is_behind(job: JobSpec, failures: int, bound: int) -> bool:
    """True if another cut may be well ahead of all plans of the own cut."""
    return Layouts(job, job.workers).may_keep_to(bound * _AHEAD // 1000, job.workers - failures)


def _is_slower(plan: Streams, more: Streams) -> bool:
    """True if a plan for more failures is faster, and a worker could be added to it."""
    return plan.job.techniques.adaptive and plan.claims.period > more.claims.period


def check_survivable(job: JobSpec, failures: int) -> None:
    """Raise NoPlanError if this many failures always leave a stage without a worker."""
    most = job.stages * (job.pipelines - 1)
    if failures > most:
        raise NoPlanError(
            f"{_counted(failures, 'failure')} cannot be survived: with {_counted(job.pipelines, 'worker')} "
            f"on each of {_counted(job.stages, 'stage')}, every stage keeps a live worker up to "
            f"{_counted(most, 'failure')}"
        )


def _no_room(job: JobSpec, failures: int) -> str:
    if job.expert_counts:
        return (
            f"{_counted(failures, 'failure')} of {_counted(job.workers, 'worker')} leave some stage too few "
            "slots for its experts, or no room for a micro-batch, wherever the failures are"
        )
    return (
        f"{_counted(failures, 'failure')} of {_counted(job.workers, 'worker')} leave no room for a "
        "micro-batch: those that are left own too much of the sharded state, wherever the failures are"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def summary(plan: Streams, seconds: float, baseline: int) -> PlanSummary:
    """Worth of a plan against fault-free 1F1B; if cells are vacant, that of the share with workers."""
    claims = plan.claims
    baseline = baseline * plan.job.workers // plan.job.present
    return PlanSummary(
        failures=len(plan.failed) - plan.job.vacant,
        failed_per_stage=failed_per_stage(plan.failed, plan.job.stages),
        period=claims.period,
        makespan=claims.makespan,
        lower_bound=claims.lower_bound,
        gap=claims.gap,
        status=claims.status,
        seconds=seconds,
        against_1f1b=baseline / claims.period,
        cut_short=claims.cut_short,
    )


class _Task(NamedTuple):
    job: JobSpec
    failures: int
    costs: FailureCosts | None
    guard: Guard
    observers: tuple[Observer, ...]
    recut: bool
    effort: Effort


class _Made(NamedTuple):
    plan: Streams
    seconds: float


def _timed_plan(task: _Task) -> _Made:
    began = time.perf_counter_ns()
    job, failures, costs, guard, observers, recut, effort = task
    plan = plan_count(job, failures, costs, guard, observers, recut=recut, effort=effort)
    return _Made(plan, (time.perf_counter_ns() - began) / 1e9)
