"""The difference of two plans, for a reviewer and for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from recycle_compiler.analysis.plan_diff import PlanDiff, Shifted
from recycle_compiler.ir.failure import FailureSet, Worker
from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from recycle_compiler.ir.units import in_memory_unit, in_unit, memory_text, plural, time_text, unit_name

_TIMES = ("period", "makespan", "lower_bound")
_TIME_FIELDS = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer")
_MEMORY_FIELDS = ("activation", "kept_for_weight", "capacity")
_EXAMPLES = 5
"""How many ops or workers of a kind are named before the rest is counted."""


def plan_title(failures: int) -> str:
    """`plan for 1 failure`: what pairs the plans of two bundles."""
    return f"plan for {plural(failures, 'failure')}"


def difference_lines(diff: PlanDiff) -> Iterator[str]:
    """What changed, most important first, indented to stand below a title."""
    for name, values in _summary(diff):
        yield f"  {name:12} {values}"
    yield from _examples("gone", "op", diff.removed)
    yield from _examples("new", "op", diff.added)
    moved = [f"{one.op}  {one.before} -> {one.after}" for one in diff.moved]
    yield from _examples("moved", "op", moved, " to another worker")
    shifted = [f"{one.op} on {one.worker}  {_retimed(diff, one)}" for one in diff.shifted]
    workers = _count_by_worker([one.worker for one in diff.shifted])
    yield from _examples("retimed", "op", shifted, f", by worker: {workers}")
    yield from _examples(
        "reordered", "worker", [f"{worker}  {plural(count, 'op')}" for worker, count in diff.reordered]
    )
    memory = [
        f"{worker}  {_memory(diff.before.job, old)} -> {_memory(diff.after.job, new)}"
        for worker, old, new in diff.memory
    ]
    yield from _examples("peak memory", "worker", memory)
    if not (moved or shifted or diff.reordered):
        # Otherwise it goes without saying.
        yield from _examples("instructions", "worker", [str(worker) for worker in diff.streams])


def difference_object(diff: PlanDiff) -> dict[str, Any]:
    """The same for programs; times and memory in the units of each side's job."""
    before, after = diff.before.job, diff.after.job
    return {
        "failures": len(diff.after.failed),
        "same": diff.is_empty,
        "failed": [[list(worker) for worker in side.failed] for side in (diff.before, diff.after)],
        "job": {name: [_field(before, name, old), _field(after, name, new)] for name, old, new in diff.job},
        "claims": {
            name: [_claim(before, name, old), _claim(after, name, new)] for name, old, new in diff.claims
        },
        "removed": list(diff.removed),
        "added": list(diff.added),
        "moved": [{"op": one.op, "before": list(one.before), "after": list(one.after)} for one in diff.moved],
        "retimed": [
            {
                "op": one.op,
                "worker": list(one.worker),
                "before": in_unit(before, one.before),
                "after": in_unit(after, one.after),
            }
            for one in diff.shifted
        ],
        "reordered": [{"worker": list(worker), "ops": count} for worker, count in diff.reordered],
        "peak_memory": [
            {"worker": list(worker), "before": _amount(before, old), "after": _amount(after, new)}
            for worker, old, new in diff.memory
        ],
        "instructions": [list(worker) for worker in diff.streams],
    }


def _summary(diff: PlanDiff) -> Iterator[tuple[str, str]]:
    if diff.before.failed != diff.after.failed:
        yield "failed", f"{_names(diff.before.failed)} -> {_names(diff.after.failed)}"
    for name, old, new in diff.job:
        before, after = _field_text(diff.before.job, name, old), _field_text(diff.after.job, name, new)
        yield f"job {name}", f"{before} -> {after}"
    for name, old, new in diff.claims:
        yield name.replace("_", " "), _claim_text(diff, name, old, new)


def _claim_text(diff: PlanDiff, name: str, old: object, new: object) -> str:
    if name not in _TIMES or not isinstance(old, int) or not isinstance(new, int):
        return f"{_words(old)} -> {_words(new)}"
    before, after = diff.before.job, diff.after.job
    text = f"{time_text(before, old)} -> {time_text(after, new)} {unit_name(after)}"
    if before.unit != after.unit or not old:
        return text
    return f"{text} ({100 * (new - old) / old:+.1f} %)"


def _examples(name: str, noun: str, items: Sequence[str], note: str = "") -> Iterator[str]:
    """How many there are, and the first of them."""
    if not items:
        return
    yield f"  {name:12} {plural(len(items), noun)}{note}"
    for item in items[:_EXAMPLES]:
        yield f"    {item}"
    if len(items) > _EXAMPLES:
        yield f"    and {len(items) - _EXAMPLES} more"


def _count_by_worker(workers: Sequence[Worker]) -> str:
    counts = sorted(Counter(workers).items())
    named = [f"{worker} {count}" for worker, count in counts[: 2 * _EXAMPLES]]
    if len(counts) > len(named):
        named.append(f"and {len(counts) - len(named)} more")
    return ", ".join(named)


def _retimed(diff: PlanDiff, one: Shifted) -> str:
    return f"{time_text(diff.before.job, one.before)} -> {time_text(diff.after.job, one.after)}"


def _names(failed: FailureSet) -> str:
    return ", ".join(map(str, failed)) or "nobody"


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _field_text(job: JobSpec, name: str, value: object) -> str:
    plain = _field(job, name, value)
    if not isinstance(plain, list):
        return _words(plain)
    return (
        " ".join("unlimited" if item is None else str(item) for item in cast(list[object], plain)) or "none"
    )


def _field(job: JobSpec, name: str, value: object) -> object:
    """A field of the job as JSON can hold it, in the units of the job."""
    if isinstance(value, Techniques):
        return list(value.names)
    if isinstance(value, SolverOptions):
        return str(value)
    if not isinstance(value, tuple):
        return value
    numbers = cast(tuple[int | None, ...], value)
    if name in _MEMORY_FIELDS:
        return [_amount(job, number) for number in numbers]
    if name in _TIME_FIELDS:
        return [in_unit(job, number or 0) for number in numbers]
    return list(numbers)


def _claim(job: JobSpec, name: str, value: object) -> object:
    return in_unit(job, value) if name in _TIMES and isinstance(value, int) else value


def _memory(job: JobSpec, amount: int | None) -> str:
    return "none" if amount is None else memory_text(job, amount)


def _amount(job: JobSpec, amount: int | None) -> int | float | None:
    return None if amount is None else in_memory_unit(job, amount)
