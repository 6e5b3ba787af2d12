"""Ops with their times as Chrome's trace format, which Perfetto reads too. Standard library only.

    {"displayTimeUnit": "ms", "otherData": {"failed": ["1:2"]}, "traceEvents": [
    {"ph": "X", "cat": "wait", "name": "wait", "ts": 9.5, "dur": 5, "args": {"step": 0, "worker": "0:1"}},
    {"ph": "X", "cat": "step", "name": "F0.3", "ts": 14.5, "dur": 2, "args": {"step": 0, "worker": "0:1"}}
    ]}

A wait belongs to the op that follows it on its track. Where a worker waited for data there is an event of its
own, `data`. Both runs and plans are written like this, so that they
lie side by side, and `recyclec diff PLAN TRACE` reads it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

WORK, WAIT, DATA = "step", "wait", "data"
"""Categories of events."""

_COLOURS = {
    "F": "good", "I": "bad", "B": "bad", "W": "olive", "R": "grey", "O": "black", "G": "grey", "S": "white",
}  # fmt: skip


class Event(NamedTuple):
    """A compute instruction as it ran, or a wait for DATA; in nanoseconds of the monotonic clock."""

    name: str
    step: int
    start: int
    end: int
    waited: int = 0
    """Of the time between start and end."""


Row = Event | tuple[str, int, int, int] | tuple[str, int, int, int, int]
"""An event, or the same as a plain tuple."""


def chrome_trace(
    events: Mapping[tuple[int, int], Sequence[Row]], about: Mapping[str, Any] | None = None
) -> str:
    """One track for each worker, in the order of stages; times from the first event on, in microseconds.

    `about` says what ran; under "failed", the workers that did not take part, each as `pipeline:stage`.
    """
    rows: list[dict[str, Any]] = []
    origin = min((row[2] for track in events.values() for row in track), default=0)
    for number, (pipeline, stage) in enumerate(sorted(events, key=lambda worker: (worker[1], worker[0]))):
        name = f"{pipeline}:{stage}"
        rows.append(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": f"worker {name}"}}
        )
        rows.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": number, "args": {"sort_index": number}}
        )
        for row in events[pipeline, stage]:
            rows.extend(_slices(row, number, name, origin))
    lines = ",\n".join(json.dumps(row) for row in rows)
    head = f'"otherData": {json.dumps(dict(about))}, ' if about is not None else ""
    return f'{{"displayTimeUnit": "ms", {head}"traceEvents": [\n{lines}\n]}}\n'


def _slices(row: Row, track: int, worker: str, origin: int) -> Iterator[dict[str, Any]]:
    """The op, and before it what of its time was waiting."""
    op, step, start, end = row[:4]
    waited = row[4] if len(row) == 5 else 0
    args = {"step": step, "worker": worker}
    if op == DATA:
        yield _slice(DATA, DATA, track, start - origin, end - start, "yellow", args)
        return
    if waited:
        yield _slice("wait", WAIT, track, start - origin, waited, "white", args)
    work = start + waited
    yield _slice(op, WORK, track, work - origin, end - work, _COLOURS[op[0]], args)


def _slice(
    name: str, category: str, track: int, start: int, length: int, colour: str, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": 0,
        "tid": track,
        "ts": start / 1000,
        "dur": length / 1000,
        "cname": colour,
        "args": args,
    }
