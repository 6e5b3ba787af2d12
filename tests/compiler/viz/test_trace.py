"""A plan as a Chrome trace."""

import json
from dataclasses import replace

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.viz.trace import planned_trace


def test_a_slot_is_a_millisecond_and_a_track_is_a_worker(tiny: Schedule) -> None:
    whole = json.loads(planned_trace(tiny))
    assert whole["otherData"] == {"job": "tiny", "failed": ["1:1"]}
    rows = whole["traceEvents"]
    tracks = [row["args"]["name"] for row in rows if row["name"] == "thread_name"]
    assert tracks == ["worker 0:0", "worker 1:0", "worker 0:1"]
    ops = [(row["name"], row["ts"], row["dur"]) for row in rows if row["ph"] == "X" and row["tid"] == 0]
    assert ops == [
        ("F0.0", 0.0, 1000.0),
        ("F0.1", 1000.0, 1000.0),
        ("I0.0", 3000.0, 1000.0),
        ("W0.0", 4000.0, 1000.0),
        ("I0.1", 7000.0, 1000.0),
        ("W0.1", 8000.0, 1000.0),
        ("R", 11000.0, 0.0),
        ("O", 11000.0, 1000.0),
    ]


def test_real_units_stay_what_they_are(tiny: Schedule) -> None:
    real = replace(tiny, job=replace(tiny.job, unit="us"))
    rows = json.loads(planned_trace(real))["traceEvents"]
    assert max(row["ts"] + row["dur"] for row in rows if row["ph"] == "X") == 14.0
