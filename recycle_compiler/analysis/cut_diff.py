"""Under which cuts two bundles are fastest: which cut became which, and what has to move for it."""

from dataclasses import dataclass
from typing import Any

from recycle_compiler.ir.bundled import layout_name, read_job
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import AnyLayout, any_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import layout_of
from recycle_compiler.ir.units import in_unit, plural, time_text, unit_name
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.recut import least_bytes_to


@dataclass(frozen=True, slots=True)
class FastestCut:
    """Layout under which the workers that so many failures leave are fastest."""

    layout: AnyLayout
    period: int
    is_own: bool


@dataclass(frozen=True, slots=True)
class CutChange:
    """The fastest cut for a number of failures, in each of two bundles."""

    failures: int
    before: FastestCut
    after: FastestCut
    moved: int
    """Layers that workers have to fetch to get from one layout to the other, summed over the workers."""


def fastest_cut(bundle: Bundle, job: JobSpec, plan: int) -> FastestCut | None:
    """The cut of the fastest plan for the workers that a plan is for; None if the job is not in layers."""
    entry = bundle.plans[plan]
    own = layout_of(job, failure_set(entry.failed))
    if own is None:
        return None
    number = bundle.fastest_recut(sum(own.workers), groups=True)
    if number is None or bundle.recuts[number].plans[0].period >= entry.period:
        return FastestCut(own, entry.period, True)
    recut = bundle.recuts[number]
    layout = any_layout_of(read_job(recut), failure_set(recut.plans[0].failed))
    assert layout is not None, "another cut is one of layers"
    return FastestCut(layout, recut.plans[0].period, False)


def cut_name(bundle: Bundle, recut: Bundle) -> str:
    """`2x2,2x4`, or `2x2,2x4 in halves` where its plans split micro-batches in two."""
    return layout_name(bundle, recut, 0)


def cut_change(failures: int, before: FastestCut, after: FastestCut) -> CutChange:
    """From one fastest cut to the other; models of different depth have no layers in common."""
    layers = sum(before.layout.layers)
    moved = layers
    if sum(after.layout.layers) == layers:
        moved = _layers_between(before.layout, after.layout)
    return CutChange(failures, before, after, moved)


def _layers_between(more: AnyLayout, fewer: AnyLayout) -> int:
    """Number of layer copies that the workers of the smaller layout have to fetch, or give up, in all."""
    if sum(fewer.workers) > sum(more.workers):
        more, fewer = fewer, more
    held = {
        (rank, stage): span
        for stage, (span, workers) in enumerate(zip(more.ranges, more.workers, strict=True))
        for rank in range(workers)
    }
    return least_bytes_to(held, fewer.ranges, fewer.workers, (1,) * sum(more.layers)).size


def change_line(change: CutChange, old: JobSpec, new: JobSpec) -> str:
    """`fastest cut for 2 failures: 3x3,3x3 (own) 75 slots -> 5x4,1x2 73 slots; workers fetch 6 layers`."""
    before = f"{_named(change.before)} {time_text(old, change.before.period)} {unit_name(old)}"
    after = f"{_named(change.after)} {time_text(new, change.after.period)} {unit_name(new)}"
    moved = "no worker needs layers that it does not hold"
    if change.moved:
        moved = f"workers fetch {plural(change.moved, 'layer')}"
    title = f"fastest cut for {plural(change.failures, 'failure')}"
    return f"{title}: {before} -> {after}; {moved}"


def change_object(change: CutChange, old: JobSpec, new: JobSpec) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "failures": change.failures,
        "before": _object(change.before, old),
        "after": _object(change.after, new),
        "layers_moved": change.moved,
    }


def _named(fastest: FastestCut) -> str:
    return f"{fastest.layout}{' (own)' if fastest.is_own else ''}"


def _object(fastest: FastestCut, job: JobSpec) -> dict[str, Any]:
    return {
        "layout": str(fastest.layout),
        "own_cut": fastest.is_own,
        "period": in_unit(job, fastest.period),
    }
