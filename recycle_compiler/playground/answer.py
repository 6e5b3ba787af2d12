"""Answers to a page: the plan of its numbers, and what other schedules take, piece by piece.

A first plan comes at once. If it is not known to be the best, a better one is looked for and follows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from recycle_compiler.backends.replay import replay
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import failed_per_stage
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.units import in_unit, memory_text, plural, time_text, unit_name
from recycle_compiler.planner.baselines import one_f_one_b_period, period_with, textbook_schedule
from recycle_compiler.planner.compile import NoPlanError, plan_failed
from recycle_compiler.playground.settings import Settings, SettingsError
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.viz.plan_page import document_of

_AT_ONCE = replace(Effort().quick(), work=6_000_000)
"""For the plan that comes first: about a quarter of a second."""
_LONGER = replace(Effort(), work=150_000_000)
"""For a better one: about six seconds at most."""
Piece = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bar:
    """Period of a schedule, for comparison."""

    name: str
    ticks: int
    note: str

    def document(self, job: JobSpec) -> Piece:
        text = f"{time_text(job, self.ticks)} {unit_name(job)}"
        return {"name": self.name, "value": in_unit(job, self.ticks), "text": text, "note": self.note}


def answer(settings: Settings) -> Iterator[Piece]:
    """Pieces in the order in which a page shows them: the text, what is being done, plans, bars, the end.

    A mistake is the last piece: `{"error": ...}`, in sentences for people.
    """
    began = time.perf_counter()
    try:
        text = settings.text()
        yield {"text": text}
        job = parse_job_text(text, f"{settings.name}.job")
        yield {"doing": f"planning {plural(settings.ops, 'op')}"}
        guard = Guard(job.solver.time_limit_ns)
        streams = plan_failed(job, settings.failed, effort=_AT_ONCE, guard=guard)
        yield _planned(streams, began)
        yield {"doing": "1F1B, zero bubble and ReCycle"}
        yield {"bars": [bar.document(job) for bar in _bars(job, settings)]}
        if streams.claims.status != "optimal":
            yield {"doing": "looking for a faster plan"}
            better = plan_failed(job, settings.failed, effort=_LONGER, guard=guard)
            if better.claims.period < streams.claims.period or better.claims.gap < streams.claims.gap:
                yield _planned(better, began)
    except CompileError as error:
        yield {"error": "\n".join(one.message for one in error.diagnostics)}
        return
    except (SettingsError, NoPlanError) as error:
        yield {"error": str(error)}
        return
    yield {"done": round(time.perf_counter() - began, 3)}


def _planned(streams: Streams, began: float) -> Piece:
    return {"plan": document_of(replay(streams)), "seconds": round(time.perf_counter() - began, 3)}


def _bars(job: JobSpec, settings: Settings) -> Iterator[Bar]:
    counts = failed_per_stage(settings.failed, job.stages)
    failed = plural(len(settings.failed), "failed worker")
    if all(count < job.pipelines for count in counts):
        yield Bar("ReCycle", period_with(job, counts), f"as published, with {failed}")
    yield Bar("1F1B", one_f_one_b_period(job), "without failures")
    for name in ("ZB-H1", "ZB-H2"):
        found = textbook_schedule(job, name)
        yield Bar(name, found.staggered_period, f"without failures{_memory_note(job, found.memory)}")


def _memory_note(job: JobSpec, memory: tuple[int, ...]) -> str:
    """Note that a schedule of the literature does not fit into memory; empty if it does."""
    over = [
        (need / limit, need, limit)
        for need, limit in zip(memory, job.capacity, strict=True)
        if limit is not None and need > limit
    ]
    if not over:
        return ""
    _, need, limit = max(over)
    return f"; does not fit into memory: needs {memory_text(job, need)}, has {memory_text(job, limit)}"
