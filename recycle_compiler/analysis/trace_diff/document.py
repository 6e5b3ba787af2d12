"""A comparison as JSON, with the same facts as the text and nothing rounded; times in microseconds."""

import json
from typing import Any

from recycle_compiler.analysis.trace_diff.comparison import TraceComparison
from recycle_compiler.analysis.trace_diff.text import verdict
from recycle_compiler.ir.units import in_unit


def comparison_document(comparison: TraceComparison) -> str:
    """The comparison as JSON text."""
    job, schedule = comparison.schedule.job, comparison.schedule
    whole: dict[str, Any] = {
        "job": job.name,
        "failed": [list(worker) for worker in schedule.failed],
        "verdict": verdict(comparison),
        "unit": job.unit,
        "microseconds_per_unit": comparison.tick * job.ticks_per_unit,
        "calibrated": comparison.is_calibrated,
        "period": in_unit(job, schedule.claims.period),
        "step": comparison.step,
        "warm_up": list(comparison.warm_up),
        "measured": comparison.time,
        "planned": comparison.planned,
        "ratio": comparison.time / comparison.planned,
        "parts": {
            "ops": comparison.longer,
            "uneven_ops": comparison.uneven,
            "waiting": comparison.waiting,
        },
        "reasons": [
            {"kind": reason.kind.name, "stage": reason.stage, "saving": reason.saving}
            for reason in comparison.reasons
        ],
        "steps": [
            {"step": step, "measured": time, "ratio": time / comparison.planned}
            for step, time in comparison.steps
        ],
        "ops": [
            {
                "kind": row.kind.name,
                "stage": row.stage,
                **({} if comparison.schedule.job.has_chunk_per_stage else {"chunk": row.chunk}),
                "count": row.count,
                "planned": row.planned,
                "median": row.median,
                "ratio": row.median / row.planned if row.planned else None,
                "tenth": row.low,
                "nine_tenths": row.high,
            }
            for row in comparison.op_times
        ],
        "workers": [
            {
                "worker": list(row.worker),
                "step": row.whole,
                "busy": row.busy,
                "planned_busy": row.planned_busy,
                "waiting": row.waiting,
                "data": row.data,
                "between_ops": row.between,
            }
            for row in comparison.workers
        ],
        "latest": [
            {
                "op": late.name,
                "worker": list(late.worker),
                "planned": late.planned,
                "started": late.started,
                "late": late.late,
            }
            for late in comparison.latest
        ],
        "as_planned": not comparison.other_order,
        "other_order": [
            {
                "step": other.step,
                "worker": list(other.worker),
                "planned": other.planned,
                "ran": other.ran,
            }
            for other in comparison.other_order
        ],
    }
    return json.dumps(whole, indent=1) + "\n"
