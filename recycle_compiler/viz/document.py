"""A plan as JSON, for other programs: one object, one op per line."""

import json
from collections.abc import Iterator
from typing import Any

from recycle_compiler.ir.failure import worker_at
from recycle_compiler.ir.groups import GroupedLayout, any_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import MICROBATCH_KINDS, Op
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import in_memory_unit, in_unit


def document(schedule: Schedule) -> str:
    """The plan as JSON text; times and memory in the units of the job."""
    head = json.dumps(_head(schedule))
    ops = ",\n  ".join(_ops(schedule))
    return f'{head[:-1]},\n "ops": [\n  {ops}\n ]}}\n'


def _head(schedule: Schedule) -> dict[str, Any]:
    job, claims = schedule.job, schedule.claims
    return {
        "job": job.name,
        "stages": job.stages,
        "pipelines": job.pipelines,
        "microbatches": job.microbatches,
        "unit": job.unit,
        "memory_unit": job.memory_unit,
        "techniques": list(job.techniques.names),
        "failed": [list(worker) for worker in schedule.failed],
        "makespan": in_unit(job, claims.makespan),
        "period": in_unit(job, claims.period),
        "lower_bound": in_unit(job, claims.lower_bound),
        "bound": claims.reason,
        "status": claims.status,
        "cut_short": claims.cut_short,
        "peak_memory": [
            [pipeline, stage, in_memory_unit(job, amount)]
            for pipeline, stage, amount in schedule.peak_memory()
        ],
        **_cut(schedule),
    }


def _cut(schedule: Schedule) -> dict[str, Any]:
    """Of a job in layers, which layers and how many workers each stage has, and what is known of all cuts."""
    job, bound = schedule.job, schedule.claims.bound_over_cuts
    layout = any_layout_of(job, schedule.failed)
    if layout is None:
        return {}
    groups: dict[str, Any] = {}
    if isinstance(layout, GroupedLayout):
        groups["groups"] = [list(group) for group in job.groups]
        groups["shares"] = list(job.shares)
    return {
        **groups,
        "workers": sum(layout.workers),
        "own_cut": not job.is_recut,
        "cut": list(layout.layers),
        "hosts": list(layout.workers),
        "layers": [list(span) for span in layout.ranges],
        "split": job.parts,
        "bound_over_cuts": in_unit(job, bound) if bound else None,
    }


def _ops(schedule: Schedule) -> Iterator[str]:
    for op, start, end in schedule.rows():
        yield json.dumps(_op(schedule.job, op, start, end))


def _op(job: JobSpec, op: Op, start: int, end: int) -> dict[str, Any]:
    of_microbatch = op.kind in MICROBATCH_KINDS
    return {
        "kind": op.kind.name,
        **({"pipeline": op.pipeline, "microbatch": op.microbatch} if of_microbatch else {}),
        "stage": op.worker // job.pipelines,
        "chunk": op.chunk,
        "worker": list(worker_at(op.worker, job.pipelines)),
        "start": in_unit(job, start),
        "end": in_unit(job, end),
    }
