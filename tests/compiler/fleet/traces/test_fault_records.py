"""Fault records of a cluster: read as they are, drawn by seed, wrong ones refused with their place."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.diagnostics import CompileError
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.traces.read import parse_trace, read_trace
from recycle_compiler.fleet.traces.trace import Draw, FleetEvent, FleetTrace, JobGrid

RECORDED = Path(__file__).parents[4].parent / "shared" / "data" / "traces" / "infinitehbd.json"
DAY = 86400.0


def record(node: str, days: float, starts: bool, kind: str = "GPU") -> dict[str, Any]:
    event = "fault_start" if starts else "fault_end"
    fault = {"Level": "Hardware Failure", "Class": kind}
    return {"node_id": node, "event_time": days, "event_type": event, "fault_type": fault}


def read(
    *records: dict[str, Any], machines: int = 2, watched: int = 2, kinds: tuple[str, ...] = ()
) -> FleetTrace:
    draw = Draw(machines, watched, kinds)
    return parse_trace(json.dumps(records, indent=1), "faults.json", JobGrid(1, 2, draw))


def test_faults_of_a_machine_that_overlap_are_one() -> None:
    trace = read(
        record("a", 1, True), record("a", 2, True), record("a", 3, False), record("a", 4, False),
        record("b", 8, True), record("b", 10, False),
    )  # fmt: skip
    assert sorted(trace.nodes) == ["a", "b"] and trace.span == 10 * DAY
    assert trace.events == (
        FleetEvent(1 * DAY, "a", False),
        FleetEvent(4 * DAY, "a", True),
        FleetEvent(8 * DAY, "b", False),
    )


def test_faults_that_follow_each_other_at_once_are_one() -> None:
    trace = read(
        record("a", 1, True), record("a", 2, False), record("a", 2, True), record("a", 3, False),
        record("b", 4, False),
    )  # fmt: skip
    assert [event for event in trace.events if event.node == "a"] == [
        FleetEvent(DAY, "a", False),
        FleetEvent(3 * DAY, "a", True),
    ]
    assert FleetEvent(0.0, "b", False) in trace.events


def test_fewer_machines_than_had_faults_were_not_watched() -> None:
    with pytest.raises(CompileError, match="--watched is 1, and 2 machines had faults"):
        read(record("a", 1, True), record("b", 2, True, "NIC"), watched=1, kinds=("GPU",))


def test_kinds() -> None:
    records = (
        record("a", 1, True),
        record("a", 2, False),
        record("b", 1, True, "NIC"),
        record("b", 9, False),
    )
    assert {event.node for event in read(*records, kinds=("nic",)).events} == {"b"}
    with pytest.raises(CompileError, match="no fault is of kind `CPU`"):
        read(*records, kinds=("CPU",))


def test_more_machines_than_were_watched() -> None:
    trace = read(record("a", 1, True), record("a", 2, False), record("b", 9, False), machines=7)
    assert len(set(trace.nodes)) == 7
    Fleet(trace, lay_out(1, 7, 1)).changes()
    assert all(0 <= event.at <= trace.span for event in trace.events)
    assert "7 of 2 machines drawn" in trace.about


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "faults.json:1:1: error[syntax]"),
        ("[]", "the list holds no faults"),
        ("[3]", "faults.json:1:2: error[type]"),
        ('[\n {"node_id": "a", "event_time": 1}]', "faults.json:2:2: error[missing]"),
        (
            '[{"node_id": "a",\n "event_time": "x", "event_type": "fault_end"}]',
            "faults.json:2:2: error[type]",
        ),
        ('[{"node_id": "a",\n "event_time": -1, "event_type": "fault_end"}]', "error[range]"),
        ('[{"node_id": "a",\n "event_time": 1, "event_type": "fault_stat"}]', "did you mean `fault_start`?"),
        ('[{"node_id": 7,\n "event_time": 1, "event_type": "fault_end"}]', "`node_id` must be a name"),
        ("[" * 100_000, "error[syntax]"),
    ],
)
def test_mistakes(text: str, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        parse_trace(text, "faults.json", JobGrid(1, 2))
    assert words in caught.value.render()


@pytest.mark.skipif(not RECORDED.exists(), reason="needs ../shared/data/traces")
def test_the_recorded_cluster() -> None:
    few, more = (read_trace(RECORDED, JobGrid(4, 8, Draw(machines)), seed=3) for machines in (32, 36))
    assert more.nodes[:32] == few.nodes and len(more.nodes) == 36
    whole = read_trace(RECORDED, JobGrid(4, 8, Draw(400)))
    assert whole.span == pytest.approx(348.9798 * DAY) and len(whole.nodes) == 400
    # 584 faults, of which 2 lie within others and 14 take no time.
    assert sum(not event.added for event in whole.events) == 584 - 2 - 14
