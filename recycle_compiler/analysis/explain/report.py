"""Everything there is to say about one plan."""

import re
from dataclasses import dataclass, replace

import numpy as np

from recycle_compiler.analysis.explain.critical_path import CriticalPath, critical_path
from recycle_compiler.analysis.explain.cuts import CutFacts
from recycle_compiler.analysis.explain.groups import GroupFacts
from recycle_compiler.analysis.explain.idle import StageTime, idle_times
from recycle_compiler.analysis.explain.proof import Proof, binding_proof, bottleneck_stage, stage_proofs
from recycle_compiler.analysis.explain.spread import SpreadCost
from recycle_compiler.analysis.explain.timeline import Timeline, timeline_of
from recycle_compiler.analysis.explain.what_if import WhatIf, mode_for, what_if
from recycle_compiler.ir.groups import stages_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.streams import Claims
from recycle_compiler.planner.baselines import one_f_one_b_period

_OF_GROUP = re.compile(r"group (?P<group>\d+): (?P<reason>.*)")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a plan's period; times in ticks."""

    schedule: Schedule
    one_f_one_b: int | None
    """The period of fault-free 1F1B under the job's own cut; None where that cut is not known."""
    bottleneck: int
    """The stage that decides."""
    hosted: tuple[int, int]
    """The fewest and the most micro-batches on a live worker of the bottleneck."""
    path: CriticalPath
    times: tuple[StageTime, ...]
    binding: Proof
    others: tuple[Proof, ...]
    """Other bounds that the bottleneck imposes, largest first."""
    what_if: WhatIf
    cuts: CutFacts | GroupFacts | None = None
    """Of a job in layers, why it is cut this way."""
    group: int | None = None
    """Of the groups of pipelines, the one that the bound is about; None where all have one cut."""
    spread: SpreadCost | None = None
    """Cost of op times that vary; None where they do not."""

    @property
    def against_1f1b(self) -> float | None:
        """Iterations per hour, as a share of fault-free 1F1B's."""
        return None if self.one_f_one_b is None else self.one_f_one_b / self.schedule.claims.period


def explain(
    schedule: Schedule,
    mode: str | None = None,
    cuts: CutFacts | GroupFacts | None = None,
    own: JobSpec | None = None,
) -> Explanation:
    """Explain one plan; `mode` says how the effect of changes is found out (default: by its size).

    `own` is the job as it starts, where neither the plan nor what is known of cuts says it.
    """
    job, claims = schedule.job, schedule.claims
    timeline = timeline_of(schedule)
    group, claims = in_group(job, claims)
    problem, first = timeline.problems[group or 0], 0
    if group is not None:
        first = stages_of_groups(job)[group].start
    stage = first + bottleneck_stage(problem, claims)
    binding = binding_proof(problem, job, claims)
    proofs = stage_proofs(problem, job, stage - first)
    times = idle_times(timeline)
    whole = own or (job if cuts is None else cuts.job)
    return Explanation(
        schedule=schedule,
        one_f_one_b=None if whole.is_recut else one_f_one_b_period(whole),
        bottleneck=stage,
        hosted=_hosted(timeline, times[stage]),
        path=critical_path(timeline, stage),
        times=times,
        binding=binding,
        others=tuple(proof for proof in proofs if proof.reason != binding.reason),
        what_if=what_if(schedule, stage, mode or mode_for(schedule)),
        cuts=cuts,
        group=group,
    )


def in_group(job: JobSpec, claims: Claims) -> tuple[int | None, Claims]:
    """The group that a bound is about, and the claims with the reason as that group alone has it."""
    if not job.groups:
        return None, claims
    named = _OF_GROUP.fullmatch(claims.reason)
    if named is None or int(named["group"]) >= len(job.groups):
        return 0, claims
    return int(named["group"]), replace(claims, reason=named["reason"])


def _hosted(timeline: Timeline, time: StageTime) -> tuple[int, int]:
    """The fewest and the most micro-batches on a live worker of the stage."""
    ops = timeline.ops
    counts = np.bincount(ops.worker[(ops.chunk == time.stage) & (ops.kind == OpKind.F)])
    working = counts[counts > 0]
    fewest = int(working.min()) if len(working) == time.workers else 0
    return fewest, int(working.max())
