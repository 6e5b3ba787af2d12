"""Events of a run as Chrome's trace format, which Perfetto reads too. Standard library only."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_COLOURS = {"F": "good", "I": "bad", "B": "bad", "W": "olive", "R": "grey", "O": "black"}


def chrome_trace(events: Mapping[tuple[int, int], Sequence[tuple[str, int, int, int]]]) -> str:
    """One track for each worker, in the order of stages; times from the first event on, in microseconds."""
    rows: list[dict[str, Any]] = []
    origin = min((start for row in events.values() for _, _, start, _ in row), default=0)
    for number, (pipeline, stage) in enumerate(sorted(events, key=lambda worker: (worker[1], worker[0]))):
        name = f"worker {pipeline}:{stage}"
        rows.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": number, "args": {"name": name}})
        rows.append(
            {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": number, "args": {"sort_index": number}}
        )
        rows.extend(
            {
                "ph": "X",
                "name": op,
                "cat": "step",
                "pid": 0,
                "tid": number,
                "ts": (start - origin) / 1000,
                "dur": (end - start) / 1000,
                "cname": _COLOURS[op[0]],
                "args": {"step": step, "worker": f"{pipeline}:{stage}"},
            }
            for op, step, start, end in events[pipeline, stage]
        )
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'
