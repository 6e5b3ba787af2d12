"""Everything there is to say about one plan."""

from dataclasses import dataclass

import numpy as np

from recycle_compiler.analysis.explain.critical_path import CriticalPath, critical_path
from recycle_compiler.analysis.explain.cuts import CutFacts
from recycle_compiler.analysis.explain.idle import StageTime, idle_times
from recycle_compiler.analysis.explain.proof import Proof, binding_proof, bottleneck_stage, stage_proofs
from recycle_compiler.analysis.explain.timeline import Timeline, timeline_of
from recycle_compiler.analysis.explain.what_if import WhatIf, mode_for, what_if
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.planner.baselines import one_f_one_b_period


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan takes as long as it does; times in ticks."""

    schedule: Schedule
    one_f_one_b: int
    """The period of fault-free 1F1B under the job's own cut."""
    bottleneck: int
    """The stage that decides."""
    hosted: tuple[int, int]
    """The fewest and the most micro-batches on a live worker of the bottleneck."""
    path: CriticalPath
    times: tuple[StageTime, ...]
    binding: Proof
    others: tuple[Proof, ...]
    """What else the bottleneck imposes, largest first."""
    what_if: WhatIf
    cuts: CutFacts | None = None
    """Of a job in layers, why it is cut this way."""

    @property
    def against_1f1b(self) -> float:
        """Iterations per hour, as a share of fault-free 1F1B's."""
        return self.one_f_one_b / self.schedule.claims.period


def explain(schedule: Schedule, mode: str | None = None, cuts: CutFacts | None = None) -> Explanation:
    """Explain one plan; `mode` says how the effect of changes is found out (default: by its size)."""
    job, claims = schedule.job, schedule.claims
    timeline = timeline_of(schedule)
    stage = bottleneck_stage(timeline.problem, claims)
    binding = binding_proof(timeline.problem, job, claims)
    proofs = stage_proofs(timeline.problem, job, stage)
    times = idle_times(timeline)
    return Explanation(
        schedule=schedule,
        one_f_one_b=one_f_one_b_period(job if cuts is None else cuts.job),
        bottleneck=stage,
        hosted=_hosted(timeline, times[stage]),
        path=critical_path(timeline, stage),
        times=times,
        binding=binding,
        others=tuple(proof for proof in proofs if proof.reason != binding.reason),
        what_if=what_if(schedule, stage, mode or mode_for(schedule)),
        cuts=cuts,
    )


def _hosted(timeline: Timeline, time: StageTime) -> tuple[int, int]:
    """The fewest and the most micro-batches on a live worker of the stage."""
    ops = timeline.ops
    counts = np.bincount(ops.worker[(ops.chunk == time.stage) & (ops.kind == OpKind.F)])
    working = counts[counts > 0]
    fewest = int(working.min()) if len(working) == time.workers else 0
    return fewest, int(working.max())
