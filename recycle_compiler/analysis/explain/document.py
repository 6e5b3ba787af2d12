"""An explanation as JSON, with the same facts as the text; times in the unit of the job."""

import json
from typing import Any

from recycle_compiler.analysis.explain.critical_path import CriticalPath, PathStep, StepKind
from recycle_compiler.analysis.explain.cuts import NO_ROOM, CutFacts, Neighbour
from recycle_compiler.analysis.explain.groups import GroupFacts
from recycle_compiler.analysis.explain.idle import CAUSES, StageTime
from recycle_compiler.analysis.explain.proof import Proof
from recycle_compiler.analysis.explain.report import Explanation
from recycle_compiler.analysis.explain.what_if import WhatIf, WhatIfOutcome
from recycle_compiler.ir.groups import stages_of_groups
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.rounds import overlapped_on
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.state import held_by_stage
from recycle_compiler.ir.units import in_unit


def explanation_document(explanation: Explanation) -> str:
    """The explanation as JSON text."""
    job = explanation.schedule.job
    whole = {
        **_head(explanation),
        "bottleneck": _bottleneck(explanation),
        "bound": {
            **_proof(job, explanation.binding),
            "others": [_proof(job, other) for other in explanation.others],
        },
        **_why(explanation),
        **_spread(explanation),
        "critical_path": _path(job, explanation.path, explanation.bottleneck),
        "stage_times": [_stage_time(job, time, _group_of(job, time.stage)) for time in explanation.times],
        **_memory(explanation.schedule),
        "what_if": _what_if(job, explanation.what_if),
    }
    return json.dumps(whole, indent=1) + "\n"


def _memory(schedule: Schedule) -> dict[str, Any]:
    """Bytes of each kind on a worker of each stage, where the job says how many parameters it has."""
    stages = held_by_stage(schedule.job)
    if not stages:
        return {}
    peaks = [0] * schedule.job.stages
    for _, stage, held in schedule.peak_memory():
        peaks[stage] = max(peaks[stage], held)
    rows = [
        {
            "stage": stage,
            "parameters": held.parameters,
            "bytes": held.parts,
            "left": held.activations,
            "activations": peak,
        }
        for stage, (held, peak) in enumerate(zip(stages, peaks, strict=True))
    ]
    return {"memory": rows}


def _head(explanation: Explanation) -> dict[str, Any]:
    schedule = explanation.schedule
    job, claims = schedule.job, schedule.claims
    return {
        "job": job.name,
        "stages": job.stages,
        "pipelines": job.pipelines,
        "microbatches": job.microbatches,
        "unit": job.unit,
        "techniques": list(job.techniques.names),
        "failed": [list(worker) for worker in schedule.failed],
        "period": in_unit(job, claims.period),
        "makespan": in_unit(job, claims.makespan),
        "lower_bound": in_unit(job, claims.lower_bound),
        "gap": round(claims.gap, 6),
        "status": claims.status,
        "cut_short": claims.cut_short,
        "one_f_one_b": None if explanation.one_f_one_b is None else in_unit(job, explanation.one_f_one_b),
        "against_1f1b": None if explanation.against_1f1b is None else round(explanation.against_1f1b, 6),
    }


def _bottleneck(explanation: Explanation) -> dict[str, Any]:
    time = explanation.times[explanation.bottleneck]
    return {
        "stage": time.stage,
        **({} if explanation.group is None else {"group": explanation.group}),
        "alive": time.workers,
        "microbatches_per_worker": list(explanation.hosted),
        "busy": round(time.busy / time.whole, 6),
        **_exchange(explanation.schedule, time.stage),
        "window": in_unit(explanation.schedule.job, time.window),
    }


def _exchange(schedule: Schedule, stage: int) -> dict[str, Any]:
    """Time of an F, and as much of an I, that tokens are on their way to experts and back; and what each
    worker computes of W meanwhile, in an iteration."""
    job = schedule.job
    if not any(job.exchange_left):
        return {}
    hidden = overlapped_on(job, schedule.ops, stage)
    return {"exchange": in_unit(job, job.exchange_left[stage]), "overlapped": in_unit(job, hidden)}


def _proof(job: JobSpec, proof: Proof) -> dict[str, Any]:
    return {
        "reason": proof.reason,
        "claim": proof.claim,
        "period": in_unit(job, proof.period),
        "parts": [{"time": in_unit(job, part.ticks), "what": part.what} for part in proof.parts],
    }


def _why(explanation: Explanation) -> dict[str, Any]:
    """Of a job in layers, why it is cut as it is."""
    cuts = explanation.cuts
    if isinstance(cuts, GroupFacts):
        return {"groups": _groups(cuts)}
    return {} if cuts is None else {"cut": _cut(explanation, cuts)}


def _spread(explanation: Explanation) -> dict[str, Any]:
    spread, job = explanation.spread, explanation.schedule.job
    if spread is None:
        return {}
    times = {"mean": spread.mean, "deviation": spread.deviation}
    alone = {"by_microbatch_alone": spread.by_microbatch, "by_chance_alone": spread.by_chance}
    return {"spread": {name: in_unit(job, round(ticks)) for name, ticks in (times | alone).items()}}


def _groups(facts: GroupFacts) -> dict[str, Any]:
    job = facts.job
    return {
        "layout": str(facts.layout),
        "workers": facts.workers,
        "bound": in_unit(job, facts.bound),
        "binding": facts.binding,
        "groups": [
            {
                "layout": str(layout),
                "workers": group.workers,
                "microbatches": group.share,
                "bound": in_unit(job, group.bound),
                "reason": group.reason,
            }
            for layout, group in zip(facts.layout.groups, facts.groups, strict=True)
        ],
        "one_cut": _neighbour(job, facts.one_cut),
        "bound_one_cut": in_unit(job, facts.bound_one_cut) if facts.bound_one_cut else None,
        "bound_two_groups": in_unit(job, facts.bound_two_groups) if facts.bound_two_groups else None,
        "one_failure_fewer": _neighbour(job, facts.fewer),
        "moves": [
            {
                "from": move.source,
                "to": move.target,
                "layout": str(move.layout),
                "bound": in_unit(job, move.bound) if move.bound < NO_ROOM else None,
            }
            for move in facts.moves
        ],
        "one_worker_more": {
            "groups": [
                {
                    "group": one.group,
                    "stage": one.stage,
                    "layout": str(one.layout),
                    "bound": in_unit(job, one.bound),
                }
                for one in facts.one_more
            ],
            "bound_one_cut": _time(job, facts.one_more_one_cut),
            "bound_two_groups": _time(job, facts.one_more_two_groups),
        },
    }


def _time(job: JobSpec, ticks: int | None) -> float | None:
    return None if ticks is None else in_unit(job, ticks)


def _group_of(job: JobSpec, stage: int) -> int | None:
    return next((number for number, own in enumerate(stages_of_groups(job)) if stage in own), None)


def _cut(explanation: Explanation, cuts: CutFacts) -> dict[str, Any]:
    job = cuts.job
    stage, bound = cuts.where_one_more
    first, end = cuts.layout.ranges[explanation.bottleneck]
    return {
        "layout": str(cuts.layout),
        "own_cut": cuts.is_own,
        "workers": cuts.workers,
        "cut": list(cuts.layout.layers),
        "hosts": list(cuts.layout.workers),
        "binding": {"stage": explanation.bottleneck, "layers": [first, end]},
        "bound": in_unit(job, cuts.bound),
        "bound_over_cuts": in_unit(job, cuts.bound_over_cuts) if cuts.bound_over_cuts else None,
        "own": _neighbour(job, cuts.own),
        "one_failure_fewer": _neighbour(job, cuts.fewer),
        "one_worker_more": {
            "bound_over_cuts": None if cuts.one_more is None else in_unit(job, cuts.one_more),
            "stage": stage,
            "bound": in_unit(job, bound),
        },
        "moves": [
            {
                "what": move.what,
                "from": move.source,
                "to": move.target,
                "layout": str(move.layout),
                "bound": in_unit(job, move.bound) if move.fits else None,
            }
            for move in cuts.moves
        ],
    }


def _neighbour(job: JobSpec, plan: Neighbour | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {"failures": plan.failures, "period": in_unit(job, plan.period), "layout": str(plan.layout)}


def _path(job: JobSpec, path: CriticalPath, bottleneck: int) -> dict[str, Any]:
    own = path.computed_on(bottleneck)
    causes = {
        "compute_on_bottleneck": own,
        "compute_elsewhere": path.total(StepKind.COMPUTE) - own,
        "transfer": path.total(StepKind.TRANSFER),
        "finish": path.total(StepKind.FINISH),
        "nothing": path.total(StepKind.NOTHING),
    }
    return {
        "stage": path.stage,
        "closed": path.closed,
        "length": in_unit(job, path.length),
        "causes": {cause: in_unit(job, ticks) for cause, ticks in causes.items()},
        "steps": [_step(job, step) for step in path.steps],
    }


def _step(job: JobSpec, step: PathStep) -> dict[str, Any]:
    compute = {} if step.worker is None else {"worker": list(step.worker), "ops": step.ops}
    names = {} if step.worker is None else {"first": step.first, "last": step.last}
    return {
        "kind": step.kind.value,
        "stage": step.stage,
        **compute,
        **names,
        "iteration": step.iteration,
        "start": in_unit(job, step.start),
        "end": in_unit(job, step.end),
    }


def _stage_time(job: JobSpec, time: StageTime, group: int | None) -> dict[str, Any]:
    """Times added up over the live workers, and each as a share of the time these have in a period."""
    ticks = {
        "compute": time.compute,
        "finish": time.finish,
        **dict(zip((cause.replace("-", "_") for cause in CAUSES), time.idle, strict=True)),
        **({} if group is None else {"sums": time.sums}),
        "slack": time.slack,
    }
    return {
        "stage": time.stage,
        **({} if group is None else {"group": group}),
        "alive": time.workers,
        "window": in_unit(job, time.window),
        "time": {name: in_unit(job, value) for name, value in ticks.items()},
        "share": {name: round(value / time.whole, 6) for name, value in ticks.items()},
        "ramp_up_with_full_memory": in_unit(job, time.full_ramp_up),
    }


def _what_if(job: JobSpec, found: WhatIf) -> dict[str, Any]:
    return {
        "mode": found.mode,
        "reference": in_unit(job, found.reference),
        "outcomes": [_outcome(job, outcome) for outcome in found.outcomes],
    }


def _outcome(job: JobSpec, outcome: WhatIfOutcome) -> dict[str, Any]:
    return {
        "what": outcome.what,
        "period": None if outcome.period is None else in_unit(job, outcome.period),
        "lower_bound": in_unit(job, outcome.lower_bound),
        "gain": round(outcome.gain, 6),
    }
