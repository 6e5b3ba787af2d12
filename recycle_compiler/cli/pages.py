"""Content of pages: all plans of a bundle, two bundles, or a plan beside a step of its run."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from recycle_compiler.analysis.trace_diff.comparison import TraceComparison
from recycle_compiler.cli.bundles import read_plan, schedule_of
from recycle_compiler.cli.options.plans import Picked, fastest_streams
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import short, time_text, unit_name
from recycle_compiler.viz.plan_page import DrawnRun, PageSide, document_of, plan_page
from recycle_runtime.cli.output import UserError

MOST_OPS = 1_500_000
"""On one page, of all its plans together: some 15 MB."""


def bundle_page(picked: Picked, path: str, *, own_cut: bool) -> str:
    """All plans of a bundle, the one that was asked for first; of very large ones those next to it."""
    bundle = picked.bundle
    counts = [len(plan.failed) for plan in bundle.plans]

    def read(failures: int) -> Schedule:
        if failures == picked.failures:
            return schedule_of(picked.streams, path)
        index = counts.index(failures)
        streams = read_plan(bundle, path, index) if own_cut else fastest_streams(bundle, path, index)
        return schedule_of(streams, path)

    all_counts = sorted({*counts, picked.failures})
    documents = _nearest(all_counts, picked.failures, read)
    held = sorted(documents)
    note = ""
    if len(held) < len(all_counts):
        note = (
            f"It has the plans for {held[0]} to {held[-1]} of up to {all_counts[-1]} failures: "
            "all of them would not fit into a page."
        )
    side = PageSide(path, tuple(documents[failures] for failures in held))
    return plan_page(picked.streams.job.name, [side], held.index(picked.failures), note)


def _nearest(
    counts: Sequence[int], middle: int, read: Callable[[int], Schedule]
) -> dict[int, dict[str, Any]]:
    """Plans for the numbers of failures next to one of them, as many as fit."""
    documents: dict[int, dict[str, Any]] = {}
    ops = 0
    for failures in sorted(counts, key=lambda count: (abs(count - middle), count)):
        schedule = read(failures)
        ops += len(schedule.ops)
        if documents and ops > MOST_OPS:
            break
        documents[failures] = document_of(schedule, failures)
    return documents


def pairs_page(names: tuple[str, str], pairs: Sequence[tuple[Schedule, Schedule]]) -> str:
    """Two plans below each other, for every number of failures that both files have."""
    if not pairs:
        raise UserError(f"{names[0]} and {names[1]} have no number of failures in common: nothing to draw")
    units = [unit_name(schedule.job) for schedule in pairs[0]]
    if units[0] != units[1]:
        raise UserError(
            f"{names[0]} and {names[1]} cannot be drawn on one time axis: "
            f"one counts in {units[0]}, the other in {units[1]}"
        )
    before, after = (
        tuple(document_of(pair[number], len(pair[1].failed)) for pair in pairs) for number in (0, 1)
    )
    first, second = _titles(names)
    sides = [PageSide(f"before: {first}", before), PageSide(f"after: {second}", after)]
    return plan_page(f"{first} and {second}", sides)


def _titles(names: tuple[str, str]) -> tuple[str, str]:
    """Names of files without their folders, unless that would make them equal."""
    first, second = (Path(name).name for name in names)
    return names if first == second else (first, second)


def run_page(comparison: TraceComparison, names: tuple[str, str]) -> str:
    """A plan, and below it one step of its run, with the same time axis."""
    schedule, tick = comparison.schedule, comparison.tick
    job = schedule.job
    start, end = comparison.start / tick, comparison.end / tick
    began = float(start.min())
    words = f"step {comparison.step} took {_short(comparison.time / 1000)} ms"
    if comparison.is_calibrated:
        words += f"; a slot is {_short(tick * job.ticks_per_unit / 1000)} ms, as measured"
    planned = time_text(job, schedule.claims.period)
    words += f"; planned were {planned} {unit_name(job)}"
    run = DrawnRun(start - began, end - began, comparison.time / tick, words)
    plan, trace = _titles(names)
    sides = [
        PageSide(f"planned: {plan}", (document_of(schedule),)),
        PageSide(f"measured: step {comparison.step} of {trace}", (document_of(schedule, run=run),)),
    ]
    return plan_page(f"{plan} and {trace}", sides)


def _short(milliseconds: float) -> str:
    """To three decimals."""
    return short(Fraction(milliseconds))
