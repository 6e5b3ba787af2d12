"""Length of an iteration with our plans, for any failures.

The bundle says it for the failures that it has plans for, with or without jitter. For others a plan is made
where that is quick; else the period is estimated from bounds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from recycle_compiler.fleet.setting import CutPlans, FleetSetting
from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.failure import FailureSet, failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.groups import Group, grouped_layout_of, groups_in_plan, stages_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout, absent_cells, job_of_layout
from recycle_compiler.ir.target import Target
from recycle_compiler.passes.standard import GRAPH_PASSES
from recycle_compiler.planner.baselines import is_large_baseline, period_with
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.planner.layout_bounds import layout_bound
from recycle_compiler.planner.recut import fastest_layout
from recycle_compiler.scheduling.bounds import stage_bounds
from recycle_compiler.scheduling.problem import UNLIMITED, Problem, problem_of, with_times_of
from recycle_compiler.simulator.costs import Jitter, jitter_of
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.moves import Counts, StageLoads, quickest_counts
from recycle_runtime.plan.plan_choice import Planned, quickest_fit, quickest_placement
from recycle_runtime.plan.recut import LayerRange, layout_text, stage_ranges

STANDS_STILL: Any = float("inf")
"""Period where the job waits for a worker to come back."""
_ITERATIONS = 9
"""The mean of eight iterations counts."""


class OurPeriods:
    """Periods in ticks, by failures on each stage. A stage without a live worker is nothing to ask about."""

    def __init__(self, setting: FleetSetting) -> None:
        self._job, self._plans, self._planned_left = setting.job, setting.plans, setting.exact_plans
        self._found: dict[Counts, float] = {}
        for plan in reversed(setting.plans):
            self._found[plan.counts] = plan.period
        self._groups: tuple[Group, ...] = ()
        if self._job.groups:
            fewest = min(setting.plans, key=lambda plan: sum(plan.counts))
            self._groups = groups_in_plan(self._job, normal_form(fewest.counts, self._job.pipelines))
        self._in_bundle = dict(self._found)
        self._bounds: dict[tuple[int, int], int] = {}

    @property
    def healthy(self) -> float:
        """Of all workers that the job begins with."""
        if self._job.vacant:
            return self.best((self._job.vacant,) + (0,) * (self._job.stages - 1)).period
        return self.exact((0,) * self._job.stages)

    def best(self, failed: Counts) -> Planned:
        """As many failures where the bundle has them; beyond its last plan, where they do least."""
        if best := quickest_placement(self._plans, sum(failed)):
            return best
        loads = loads_of(self._job)
        placed = self._with_slots(quickest_counts(failed, loads), loads)
        if placed is None:
            return Planned(failed, STANDS_STILL)
        return Planned(placed, round(self.exact(placed)))

    def _with_slots(self, failed: Counts, loads: StageLoads) -> Counts | None:
        """As many failures, where every stage has slots for its experts; None if they leave too few."""
        if not self._is_short(failed):
            return failed
        placed = [min(gone, allowed) for gone, allowed in zip(failed, self._allowed, strict=True)]
        for _ in range(sum(failed) - sum(placed)):
            stages = [stage for stage, gone in enumerate(placed) if gone < self._allowed[stage]]
            if not stages:
                return None
            placed[min(stages, key=lambda stage: (loads.ticks(stage, placed[stage] + 1), stage))] += 1
        return tuple(placed)

    @cached_property
    def _allowed(self) -> tuple[int, ...]:
        """Most failures on each stage that leave slots for its experts, and a worker."""
        stages = range(self._job.stages)
        return tuple(
            max(
                (
                    gone
                    for gone in range(self._job.pipelines)
                    if not self._is_short(tuple(gone * (each == stage) for each in stages))
                ),
                default=0,
            )
            for stage in stages
        )

    def _is_short(self, counts: Counts) -> bool:
        """True if a stage has too few slots for its experts: no plan is possible."""
        return self._job.left_by(counts).short_of_slots is not None

    def is_planned(self, failures: int) -> bool:
        """True if the bundle says where so many failures lie best."""
        return any(sum(plan.counts) == failures for plan in self._plans)

    def in_bundle(self, counts: Counts) -> bool:
        return counts in self._in_bundle

    def at_once(self, counts: Counts) -> float | None:
        """Of the plan of the bundle that a running job would take for these failures."""
        found = quickest_fit(self._plans, counts)
        return None if found is None else self._plans[found].period

    def exact(self, counts: Counts) -> float:
        """Of a plan for exactly these failures, or of one of the bundle for more where that is faster;
        STANDS_STILL where there can be none."""
        if counts not in self._found and self._is_short(counts):
            self._found[counts] = STANDS_STILL
        if counts not in self._found:
            if self._planned_left > 0:
                self._planned_left -= 1
                period = _exact_period(self._job, counts)
            else:
                period = self._estimate(counts)
            self._found[counts] = min(period, self.at_once(counts) or period)
        return self._found[counts]

    def _estimate(self, counts: Counts) -> float:
        """By the bound, or what ReCycle's rules reach for these failures, which ours may use as well; but no
        less than plans for some of these failures take, which such a plan would serve too."""
        estimate = self._bound(counts) * self._excess
        if not self._groups and not is_large_baseline(self._job):
            estimate = min(estimate, period_with(self._job, counts, self._job.techniques))
        fewer = (
            plan.period
            for plan in self._plans
            if all(gone <= failed for gone, failed in zip(plan.counts, counts, strict=True))
        )
        return max(estimate, *fewer, 0.0)

    @cached_property
    def _excess(self) -> float:
        """Ratio of period to bound of the bundle's worst plan; others are taken to be no better."""
        return max((plan.period / self._bound(plan.counts) for plan in self._plans), default=1.0)

    def _bound(self, counts: Counts) -> int:
        """Bound of the slowest stage, in ticks; failures on several stages add little to each other."""
        return max(self._stage_bound(stage, failures) for stage, failures in enumerate(counts))

    def _stage_bound(self, stage: int, failures: int) -> int:
        key = stage, failures
        if key not in self._bounds:
            group = next((one for one in self._groups if stage in one.stages), None)
            self._bounds[key] = (
                _bound_of_stage(self._job, stage, failures)
                if group is None
                else _bound_in_group(group, stage - group.stages.start, self._job.pipelines - failures)
            )
        return self._bounds[key]


# A command leads many fleets through traces, and asks for the same bounds and plans again.


@lru_cache(maxsize=1 << 16)
def _bound_of_stage(job: JobSpec, stage: int, failures: int) -> int:
    """Bound of a stage with so many failures, where the others have all workers."""
    counts = tuple(failures if other == stage else 0 for other in range(job.stages))
    hosts = Target(job, normal_form(counts, job.pipelines)).hosts
    problem = with_times_of(replace(_whole_problem(job, ()), hosts=hosts), job.left_by(counts))
    rooms = zip(problem.capacity, problem.activation, strict=True)
    if any(UNLIMITED != room < needed for room, needed in rooms):
        # Those that are left own too much of a sharded state for a plan; the load is still known.
        problem = with_times_of(problem, job)
    return max(bound.period for bound in stage_bounds(problem, stage))


@lru_cache(maxsize=1 << 16)
def _bound_in_group(group: Group, place: int, live: int) -> int:
    """Bound of a stage of a group with so many workers, where the others have all that the plans are for."""
    problem = _whole_problem(group.job, group.failed)
    hosts = list(Target(group.job, group.failed).hosts)
    hosts[place] = tuple(range(min(problem.units, live)))
    return max(bound.period for bound in stage_bounds(replace(problem, hosts=tuple(hosts)), place))


@lru_cache(maxsize=64)
def _whole_problem(job: JobSpec, failed: FailureSet) -> Problem:
    """The timing problem with these failures."""
    return problem_of(GRAPH_PASSES.run(Target(job, failed)))


@lru_cache(maxsize=4096)
def _exact_period(job: JobSpec, counts: Counts) -> float:
    """Period of a plan for exactly these failures."""
    return float(plan_failed(job, normal_form(counts, job.pipelines)).claims.period)


class OurCut(NamedTuple):
    """A cut that ours can train under."""

    job: JobSpec
    """Its stages are those of the cut."""
    plans: tuple[Planned, ...]
    periods: OurPeriods
    ranges: tuple[LayerRange, ...]
    """The layers of each stage; empty where the job gives whole stages only. Stages of groups of pipelines
    with cuts of their own follow each other, each group beginning with layer 0."""

    def layouts(self) -> Iterator[tuple[Counts, int]]:
        """Workers on each stage of every plan, and its period."""
        for counts, period, _ in self.plans:
            yield tuple(self.job.pipelines - gone for gone in counts), period

    def text(self, workers: Counts) -> str:
        """The layout with so many workers on each stage."""
        gone = tuple(self.job.pipelines - count for count in workers)
        groups = grouped_layout_of(self.job, normal_form(gone, self.job.pipelines))
        return layout_text(self.job.cut, workers) if groups is None else str(groups)

    def state_bytes(self, stage: int) -> int:
        """Bytes that a worker that comes to a stage has to copy."""
        return sum(self.job.parameters[chunk] for chunk in self.job.held[stage])

    @property
    def loads(self) -> StageLoads:
        """Time of each stage with the workers that it has."""
        return loads_of(self.job)


def our_cuts(setting: FleetSetting) -> tuple[OurCut, ...]:
    """The job's own cut first."""
    own = OurCut(setting.job, setting.plans, OurPeriods(setting), stage_ranges(setting.job.cut))
    return (own, *(_other_cut(setting, each) for each in setting.recuts))


def _other_cut(setting: FleetSetting, cut: CutPlans) -> OurCut:
    """Plans of patterns that the bundle does not have are estimated there."""
    there = replace(setting, job=cut.job, plans=cut.plans, recuts=(), exact_plans=0)
    chunks = stage_ranges(cut.job.cut)
    ranges = tuple((chunks[held[0]][0], chunks[held[-1]][1]) for held in cut.job.held)
    return OurCut(cut.job, cut.plans, OurPeriods(there), ranges)


def alone(cuts: Sequence[OurCut], cut: OurCut, workers: Counts) -> tuple[OurCut, int] | None:
    """The cut under which one of the groups of another goes on without the others, and its first stage there.

    `workers` are those of each stage. None if no group has some on all of its stages, or there is no plan.
    """
    planned, _ = next(cut.layouts())
    for own in stages_of_groups(cut.job):
        here = workers[own.start : own.stop]
        alike = [
            other
            for other in cuts
            if not other.job.groups
            and other.job.parts == cut.job.parts
            and other.ranges == cut.ranges[own.start : own.stop]
            and max(here) <= other.job.pipelines
        ]
        if not min(here) or not alike:
            continue
        wanted = planned[own.start : own.stop]
        fitting = (other for other in alike if any(known == wanted for known, _ in other.layouts()))
        return next(fitting, alike[0]), own.start
    return None


class CutsOnDemand:
    """Cuts for fewer workers than the bundle has plans for, as a running job asks for them."""

    def __init__(self, setting: FleetSetting) -> None:
        self._setting = setting
        most = max((sum(plan.counts) for plan in setting.plans), default=0)
        self._fewest = setting.job.workers - most
        self._made: dict[int, OurCut | None] = {}

    def is_beyond(self, workers: int) -> bool:
        """True if the bundle has nothing for so few, and the job can be re-cut."""
        return bool(self._setting.recuts) and workers < self._fewest

    def cut(self, workers: int) -> OurCut | None:
        """The fastest that is found for so many workers; None if they cannot hold all layers."""
        if workers not in self._made:
            self._made[workers] = self._search(workers)
        return self._made[workers]

    def _search(self, workers: int) -> OurCut | None:
        job = self._setting.job
        found = fastest_layout(job, workers)
        if found is None:
            return None
        layout, period = found
        derived = job_of_layout(job, layout)
        if period is None:
            period = round(layout_bound(job, layout) * self._excess)
        absent = failed_per_stage(absent_cells(derived, layout), derived.stages)
        return _other_cut(self._setting, CutPlans(derived, (Planned(absent, period),)))

    @cached_property
    def _excess(self) -> float:
        """Largest ratio of period to layout bound among the bundle's plans."""
        job = self._setting.job
        gaps = [1.0]
        for cut in self._setting.recuts:
            if cut.job.parts == 1 and not cut.job.groups:
                workers = tuple(cut.job.pipelines - gone for gone in cut.plans[0].counts)
                gaps.append(cut.plans[0].period / layout_bound(job, Layout(cut.job.cut, workers)))
        return max(gaps)


def fastest_period(setting: FleetSetting, failures: int) -> float | None:
    """Ticks of the fastest plan of any cut for so many failures or more; None where there is none."""
    live = setting.job.workers - failures
    cuts = (CutPlans(setting.job, setting.plans), *setting.recuts)
    periods = (
        plan.period for cut in cuts for plan in cut.plans if cut.job.workers - sum(plan.counts) <= live
    )
    return min(periods, default=None)


def healthy_period(setting: FleetSetting) -> float:
    """Ticks of our fastest plan without failures: what 100 % means."""
    own = OurPeriods(setting).healthy
    others = fastest_period(setting, setting.job.vacant)
    return own if others is None else min(own, others)


def loads_of(job: JobSpec) -> StageLoads:
    """Time of each stage with the workers that it has."""
    ops = (job.forward, job.backward_input, job.backward_weight)
    held = job.held
    each = (sum(times[chunk] for times in ops for chunk in chunks) for chunks in held)
    once = (sum(job.optimizer[chunk] for chunk in chunks) for chunks in held)
    units = [job.pipelines * job.microbatches] * job.stages
    for stages, share in zip(stages_of_groups(job), job.shares, strict=True):
        units[stages.start : stages.stop] = [share] * len(stages)
    return StageLoads(job.pipelines, tuple(units), tuple(each), tuple(once))


def plans_of(bundle: Bundle) -> list[Planned]:
    """Failure counts and claimed period of each of the bundle's plans."""
    return [
        Planned(failed_per_stage(failure_set(plan.failed), bundle.stages), plan.period)
        for plan in bundle.plans
    ]


def recuts_of(bundle: Bundle) -> list[CutPlans]:
    """Job and claimed plans of each of the bundle's other cuts."""
    return [CutPlans(read_job(each), tuple(plans_of(each))) for each in bundle.recuts]


def with_jitter(setting: FleetSetting, bundle: Bundle, variation: float | None, seed: int) -> FleetSetting:
    """The setting with random op times, of this standard deviation around what they should be.

    Where none is given, as the job says; what it says of micro-batches counts in any case.

    Each plan of ours runs in the engine. All other periods, of other policies too, become longer as our plan
    with fewest failures does.
    """
    jitter = jitter_of(setting.job, seed, variation)
    if jitter.is_none:
        return setting
    claimed, periods = plans_of(bundle), _periods(bundle, jitter)
    fewest = min(range(len(claimed)), key=lambda number: sum(claimed[number].counts))
    longer = periods[fewest] / claimed[fewest].period
    plans = _measured(claimed, periods, longer)
    recuts = [
        CutPlans(read_job(each), tuple(_measured(plans_of(each), _periods(each, jitter), longer)))
        for each in bundle.recuts
    ]
    return replace(
        setting,
        plans=tuple(sorted(plans, key=lambda plan: (sum(plan.counts), plan.period))),
        second_ticks=setting.second_ticks / longer,
        recuts=tuple(recuts),
    )


def _periods(bundle: Bundle, jitter: Jitter) -> list[float]:
    """Of each plan, in the engine."""
    return [
        simulate(bundle, number, iterations=_ITERATIONS, jitter=jitter, keep_ops=False).period
        for number in range(len(bundle.plans))
    ]


def _measured(claimed: list[Planned], periods: list[float], longer: float) -> list[Planned]:
    measured = zip(claimed, periods, strict=True)
    return [Planned(plan.counts, round(period / longer)) for plan, period in measured]
