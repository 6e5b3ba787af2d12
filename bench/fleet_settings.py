"""Benchmark jobs with our plans, ready for policies, and what policies make of failures there."""

import random
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from bench.report import job_path
from recycle_compiler.fleet.course import Start, lead
from recycle_compiler.fleet.policy import Change, Policy, Worker
from recycle_compiler.fleet.setting import ChangeCosts, CutPlans, FleetSetting, Known, make_setting, read_said
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.choice import RecutChoice, plan_cuts
from recycle_compiler.planner.compile import compile_job, plan_count
from recycle_compiler.planner.placement import measure_costs
from recycle_compiler.planner.recut import can_recut
from recycle_compiler.planner.worker_processes import running
from recycle_compiler.scheduling.budget import Guard
from recycle_runtime.plan.plan_choice import Planned

SHARED_DATA = job_path("any").parent.parent.parent.parent / "shared" / "data"
"""Published traces and curves; not part of the project, and read in place."""
HOUR = 3600.0
PLAN_LIMIT = 86_400_000_000_000
"""Nanoseconds for the plans of a job: a day, so that they are the same on a busy machine."""


class OurPlans(NamedTuple):
    """Of one job: under its own cut, and under others where it is in layers."""

    own: tuple[Planned, ...]
    recuts: tuple[CutPlans, ...] = ()


def setting_of(name: str, plans: OurPlans | None = None, costs: ChangeCosts | None = None) -> FleetSetting:
    """The setting of a benchmark job, with all its plans unless some are given."""
    loaded = load_job(str(job_path(name)))
    own, recuts = all_plans(name) if plans is None else plans
    known = Known(layers=read_said(loaded.source).layers, costs=costs or ChangeCosts())
    return make_setting(loaded.spec, own, known, recuts)


@cache
def all_plans(name: str) -> OurPlans:
    """Those that `recyclec compile` would make."""
    return compiled(load_job(str(job_path(name))).spec).plans


def compiled(job: JobSpec) -> "Made":
    """The plans that `recyclec compile` would make, given the time."""
    guard = Guard(PLAN_LIMIT)
    own = dict(enumerate(compile_job(job, processes=2, recut=can_recut(job), guard=guard)))
    cuts = plan_cuts(job, own, 2, guard) if can_recut(job) else None
    return Made(own, cuts)


def samples_of(name: str) -> int:
    """Samples in an iteration of a benchmark job."""
    samples = read_said(load_job(str(job_path(name))).source).samples
    assert samples is not None, f"{name} says how large a micro-batch is"
    return samples


def calibrated(setting: FleetSetting, samples: int, fault_free: float) -> FleetSetting:
    """The setting with all times scaled so that fault-free 1F1B has this many samples a second."""
    return replace(setting, second_ticks=setting.one_f_one_b * fault_free / samples)


class Made(NamedTuple):
    """Our plans for some numbers of failures: a large job has no time for all of them."""

    own: dict[int, Streams]
    """Under the own cut, by the number of failures."""
    cuts: RecutChoice | None
    """Under others, and in groups of pipelines, where the job is in layers."""

    @property
    def plans(self) -> OurPlans:
        return OurPlans(tuple(map(our_plan, self.own.values())), _cut_plans(self.cuts))


@cache
def made_for(name: str, counts: tuple[int, ...]) -> Made:
    """The plans of a benchmark job for these numbers of failures alone; several tables may ask for them."""
    job = load_job(str(job_path(name))).spec
    with running(1) as run:
        costs = measure_costs(job, max(counts), run, Guard(PLAN_LIMIT))
    own = {count: plan_count(job, count, costs, Guard(PLAN_LIMIT)) for count in sorted(counts)}
    cuts = plan_cuts(job, own, 2, Guard(PLAN_LIMIT)) if can_recut(job) else None
    return Made(own, cuts)


def _cut_plans(cuts: RecutChoice | None) -> tuple[CutPlans, ...]:
    made = [] if cuts is None else cuts.plans
    return tuple(CutPlans(plans[0].job, tuple(map(our_plan, plans))) for plans in made)


def our_plan(program: Streams) -> Planned:
    return Planned(failed_per_stage(program.failed, program.job.stages), program.claims.period)


def shuffled_workers(job: JobSpec) -> list[Worker]:
    """All workers in the order in which they fail; the same every time."""
    workers = [(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages)]
    random.Random(0).shuffle(workers)
    return workers


def average_rate(policy: Policy, job: JobSpec, every: float, span: float) -> float:
    """Iterations a second while one worker more fails every so many seconds and none comes back."""
    changes: list[Change] = []
    down: frozenset[Worker] = frozenset()
    for number, worker in enumerate(shuffled_workers(job), start=1):
        if number * every >= span:
            break
        down |= {worker}
        changes.append(Change(number * every, frozenset({worker}), frozenset(), down, 0))
    return lead(policy, Start(frozenset(), 0), changes, span).kept / span
