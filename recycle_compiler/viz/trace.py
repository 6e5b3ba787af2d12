"""A plan as a Chrome trace, written as the trace of a run is, so that both lie side by side."""

from typing import Any

from recycle_compiler.ir.failure import worker_at
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.ops import MICROBATCH_KINDS, SERVICES
from recycle_compiler.ir.schedule import Schedule
from recycle_runtime.plan.chrome_trace import chrome_trace

_NANOSECONDS_PER_SLOT_TICK = 1_000
"""A slot is drawn as one millisecond."""


def planned_trace(schedule: Schedule) -> str:
    """One iteration; a track for each live worker."""
    tick = _NANOSECONDS_PER_SLOT_TICK if schedule.job.unit == "slot" else 1
    tracks: dict[tuple[int, int], list[tuple[str, int, int, int]]] = {}
    for op, start, end in schedule.rows():
        batch = f"{op.pipeline}.{op.microbatch}" if op.kind in MICROBATCH_KINDS else ""
        batch = str(op.microbatch) if op.kind in SERVICES else batch
        row = (f"{op.kind.name}{batch}", 0, start * tick, end * tick)
        tracks.setdefault(worker_at(op.worker, schedule.job.pipelines), []).append(row)
    about: dict[str, Any] = {
        "job": schedule.job.name,
        "failed": [str(worker) for worker in schedule.failed],
    }
    if (layout := any_layout_of(schedule.job, schedule.failed)) is not None:
        about["layout"] = str(layout)
    return chrome_trace(tracks, about)
