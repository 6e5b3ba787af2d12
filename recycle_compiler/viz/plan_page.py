"""Plans as one page to look around in: zoom, what each op waited for, memory, all numbers of failures.

The script of the page is in `web/src/plan/`; here are the columns that it draws from. Times stay in ticks. A
start is written as the gap to the end of the op before it on its worker, which is mostly 0, so that a plan
takes some ten bytes for an op.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker, worker_number
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.job import leading_chunks
from recycle_compiler.ir.ops import MICROBATCH_KINDS, SERVICES, Column, Op, OpKind, op_duration
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import unit_name
from recycle_compiler.viz.grid import KIND_WORDS, row_groups
from recycle_compiler.viz.heading import heading, no_plan
from recycle_compiler.viz.picture import LIGHT_KINDS, PALETTES, busiest_start, proof_text
from recycle_compiler.viz.shell import MADE_BY, whole_page

Numbers = NDArray[np.int64] | NDArray[np.float64]
_TIMED = (*MICROBATCH_KINDS, OpKind.R, OpKind.O, OpKind.G, *SERVICES)
LETTERS = {kind.name: kind.name for kind in OpKind} | {kind.name: kind.name[1:].lower() for kind in SERVICES}
"""Letters of the kinds on pages, small ones for services."""
_DECIMALS = 3
"""Of a tick, in measured times."""


class DrawnRun(NamedTuple):
    """One step of a run of a schedule, in its ticks: a value for each of its rows."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    period: float
    """Duration of the step, in ticks."""
    words: str
    """Description of the step, of its run, and of how it was measured."""


@dataclass(frozen=True, slots=True)
class PageSide:
    """Drawings for one place of the page, by the number of failures."""

    name: str
    plans: tuple[dict[str, Any], ...]
    """As `document_of` makes them."""


def plan_page(title: str, sides: Sequence[PageSide], first: int = 0, note: str = "") -> str:
    """One or several plans below each other, with the same view; `first` is the one that is shown first."""
    data: dict[str, Any] = {
        "title": title,
        "note": note,
        "first": first,
        **page_frame(),
        "sides": [{"name": side.name, "plans": list(side.plans)} for side in sides],
    }
    return whole_page("plan", title, data)


def page_frame() -> dict[str, Any]:
    """Colours and words, which pages with plans have in common."""
    return {
        "made_by": MADE_BY,
        "palettes": {
            theme: {LETTERS.get(name, name): colour for name, colour in palette.items()}
            for theme, palette in PALETTES.items()
        },
        "light_kinds": [LETTERS[kind] for kind in LIGHT_KINDS],
        "words": {LETTERS[kind.name]: words for kind, words in KIND_WORDS.items()},
    }


def document_of(
    schedule: Schedule, failures: int | None = None, run: DrawnRun | None = None
) -> dict[str, Any]:
    """JSON document of a plan, or of a step of its run, for a page."""
    claims = schedule.claims
    head: dict[str, Any] = {
        "title": list(heading(schedule)),
        "proof": proof_text(schedule),
        "failures": len(schedule.failed) if failures is None else failures,
        "measured": False,
        "period": claims.period,
        "makespan": claims.makespan,
        "lower_bound": claims.lower_bound,
        "reason": claims.reason,
        "status": claims.status,
        "no_plan": no_plan(schedule),
        "period_start": busiest_start(schedule),
    }
    if run is not None:
        head |= _head_of_run(schedule, run)
    return {**_shape(schedule), **head, **_columns(schedule, run)}


def _head_of_run(schedule: Schedule, run: DrawnRun) -> dict[str, Any]:
    compute = schedule.is_compute
    first, last = float(run.start[compute].min()), float(run.end[compute].max())
    return {
        "proof": run.words,
        "measured": True,
        "period": round(run.period, _DECIMALS),
        "makespan": round(last - first, _DECIMALS),
        "lower_bound": schedule.claims.period,
        "status": "measured",
        "period_start": round(max(0.0, float(run.end.max()) - run.period), _DECIMALS),
    }


def _shape(schedule: Schedule) -> dict[str, Any]:
    job = schedule.job
    absent = set(schedule.failed) if job.is_recut and any_layout_of(job, schedule.failed) else set[Any]()
    return {
        "job": job.name,
        "unit": unit_name(job),
        "ticks_per_unit": job.ticks_per_unit,
        "memory_in_bytes": job.memory_unit != "count",
        "memory_scale": job.memory_scale,
        "stages": job.stages,
        "pipelines": job.pipelines,
        "microbatches": job.microbatches,
        "recut": job.is_recut,
        "grouped": bool(job.groups),
        "staggered": job.techniques.stagger,
        "chunk_stages": list(job.chunk_stages),
        "tied": leading_chunks(job),
        "transfer": list(job.transfer),
        "activation": list(job.activation),
        "kept_for_weight": list(job.kept_for_weight),
        "capacity": list(job.capacity),
        "groups": [[list(worker) for worker in group] for group in row_groups(schedule)],
        "failed": [list(worker) for worker in schedule.failed if worker not in absent],
    }


def _columns(schedule: Schedule, run: DrawnRun | None) -> dict[str, Any]:
    """The ops of each row of the picture, one row after the other."""
    job, ops = schedule.job, schedule.ops
    rows_of = dict(schedule.worker_starts())
    workers = [worker for group in row_groups(schedule) for worker in group]
    nothing = slice(0, 0)
    order = np.concatenate(
        [np.arange(len(ops), dtype=np.int64)[rows_of.get(worker, nothing)] for worker in workers]
    )
    start: Numbers = schedule.start if run is None else run.start
    end: Numbers = schedule.end if run is None else run.end
    if run is not None:
        # Of ops that ran in another order than planned, those that began first come first.
        order = order[np.lexsort((end[order], start[order], _rank(schedule, workers)[order]))]
    counts = [len(range(*rows_of.get(worker, nothing).indices(len(ops)))) for worker in workers]
    start, end = start[order], end[order]
    before = np.concatenate([np.zeros(1, dtype=end.dtype), end[:-1]])
    before[np.cumsum([0, *counts])[:-1][np.array(counts) > 0]] = 0
    chunk = ops.chunk[order]
    stage = ops.worker[order] // job.pipelines
    return {
        "counts": counts,
        "kind": "".join(LETTERS[OpKind(kind).name] for kind in cast(list[int], ops.kind[order].tolist())),
        "pipeline": ops.pipeline[order].tolist(),
        "microbatch": ops.microbatch[order].tolist(),
        "gap": _listed(cast(Numbers, start - before)),
        "duration": _durations(schedule) if run is None else _listed(cast(Numbers, end - start)),
        "chunk": None if np.array_equal(chunk, stage) else chunk.tolist(),
        "edges": _edges(schedule, order),
    }


def _rank(schedule: Schedule, workers: Sequence[Worker]) -> Column:
    """For each op, the number of its row in the picture."""
    place = np.zeros(schedule.job.workers, dtype=np.int64)
    for number, worker in enumerate(workers):
        place[worker_number(worker, schedule.job.pipelines)] = number
    return place[schedule.ops.worker]


def _listed(column: Numbers) -> list[int] | list[float]:
    if column.dtype == np.int64:
        return cast(list[int], column.tolist())
    return cast(list[float], np.round(column, _DECIMALS).tolist())


def _durations(schedule: Schedule) -> dict[str, list[int]] | list[int]:
    """By kind and chunk, as the job says; op by op where a plan has others."""
    job, ops = schedule.job, schedule.ops
    table = np.zeros((max(OpKind) + 1, job.chunks), dtype=np.int64)
    for kind in _TIMED:
        table[kind] = [op_duration(job, kind, chunk) for chunk in range(job.chunks)]
    if np.array_equal(table[ops.kind, ops.chunk], ops.duration):
        return {LETTERS[kind.name]: table[kind].tolist() for kind in _TIMED}
    by_row = dict(schedule.worker_starts())
    workers = [worker for group in row_groups(schedule) for worker in group if worker in by_row]
    return cast(list[int], np.concatenate([ops.duration[by_row[worker]] for worker in workers]).tolist())


def _edges(schedule: Schedule, order: Column) -> list[list[int]]:
    """Orders that a pass has added, between ops as the page numbers them."""
    if not schedule.edges:
        return []
    place = {_place(schedule.ops[row]): number for number, row in enumerate(order.tolist())}
    return [[place[edge.before], place[edge.after], edge.lag] for edge in schedule.edges]


def _place(op: Op) -> tuple[OpKind, int, int, int]:
    return op.kind, op.pipeline, op.microbatch, op.chunk
