"""Traces are read, or refused in one sentence."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.analysis.trace_diff.trace_file import (
    Ran,
    TraceError,
    begins_like_a_trace,
    parse_run_trace,
)
from recycle_compiler.ir.failure import Worker
from recycle_runtime.plan.chrome_trace import chrome_trace

GOOD = chrome_trace(
    {(0, 0): [("F0.0", 0, 5_000, 7_000), ("R", 0, 9_000, 9_000)], (0, 1): [("I0.0", 3, 6_000, 9_000, 1_500)]},
    {"failed": ["1:0"]},
)


def event(**changes: Any) -> bytes:
    row = {"ph": "X", "name": "F0.0", "cat": "step", "ts": 1, "dur": 2, "args": {"step": 0, "worker": "0:0"}}
    return json.dumps({"traceEvents": [row | changes]}).encode()


def test_what_a_run_has_written_is_read() -> None:
    trace = parse_run_trace(GOOD.encode())
    assert trace.ops == (
        Ran("F0.0", 0, Worker(0, 0), 0.0, 2.0, 0.0),
        Ran("R", 0, Worker(0, 0), 4.0, 4.0, 0.0),
        Ran("I0.0", 3, Worker(0, 1), 2.5, 4.0, 1.5),
    )
    assert trace.failed == (Worker(1, 0),)
    assert (trace.workers, trace.steps) == ((Worker(0, 0), Worker(0, 1)), (0, 3))


def test_waits_for_data_are_added_up_apart_from_ops() -> None:
    rows = [
        ("data", 0, 5_000, 6_000),
        ("F0.0", 0, 6_000, 7_000),
        ("data", 0, 7_000, 9_500),
        ("R", 0, 9_500, 9_500),
    ]
    trace = parse_run_trace(chrome_trace({(0, 0): rows}).encode())
    assert [op.name for op in trace.ops] == ["F0.0", "R"]
    assert trace.data == {(Worker(0, 0), 0): 3.5}
    assert parse_run_trace(GOOD.encode()).data == {}


def test_a_bare_list_of_events_is_a_trace_that_does_not_say_who_failed() -> None:
    rows = json.dumps(json.loads(GOOD)["traceEvents"]).encode()
    assert parse_run_trace(rows).ops == parse_run_trace(GOOD.encode()).ops
    assert parse_run_trace(rows).failed is None


def test_events_that_take_no_time_are_passed_over() -> None:
    whole = json.loads(GOOD)
    whole["traceEvents"].append({"ph": "C", "name": "memory", "args": {"bytes": 1}})
    assert parse_run_trace(json.dumps(whole).encode()).ops == parse_run_trace(GOOD.encode()).ops


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{nonsense}", "not JSON: line 1, column 2: "),
        (GOOD.encode()[:-60], "truncated: line "),
        (GOOD.encode()[:-4], "truncated: line "),
        (b'{"a": "\xff"}', "not JSON: it is not UTF-8"),
        (b"{}", "not a Chrome trace: it has no list of traceEvents"),
        (b'{"traceEvents": {}}', "not a Chrome trace: it has no list of traceEvents"),
        (b'{"traceEvents": []}', "the trace holds no op; "),
        (b'{"traceEvents": [3]}', "event 0 is not an object"),
        (b"[" * 100_000, "not a Chrome trace: it is nested too deeply"),
        (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "not JSON: it holds a number that cannot have"),
        (event(ts=float("nan")), "not JSON: it holds a number that cannot have been measured"),
        (event(name="aten::mm"), 'event 0 is no op of a plan: "aten::mm"; they are like F0.3, R, O and G'),
        (event(name="x" * 100), 'event 0 is no op of a plan: "' + "x" * 39 + "..."),
        (event(name=None), "event 0 is no op of a plan: null"),
        (event(ph="B"), 'event 0 is no op of a plan: "F0.0"'),
        (event(args={"step": 0}), 'event 0 ("F0.0") does not say which worker ran it'),
        (event(args={"step": 0, "worker": "1"}), 'event 0 ("F0.0") does not say which worker ran it'),
        (event(args=[]), 'event 0 ("F0.0") does not say which worker ran it'),
        (
            event(args={"step": True, "worker": "0:0"}),
            'event 0 ("F0.0") does not say which step it belongs to',
        ),
        (event(args={"step": -1, "worker": "0:0"}), 'event 0 ("F0.0") does not say which step it belongs to'),
        (event(ts=-1), 'event 0 ("F0.0") has a negative number as its ts'),
        (event(dur=-0.5), 'event 0 ("F0.0") has a negative number as its dur'),
        (event(dur="2"), 'event 0 ("F0.0") has no number as its dur'),
        (event(ts=None), 'event 0 ("F0.0") has no number as its ts'),
        (event(ts=10**400), 'event 0 ("F0.0") has more than any run takes as its ts'),
        (event(dur=1e300).replace(b"1e+300", b"1e999"), "has more than any run takes as its dur"),
        (GOOD.replace('"1:0"', "7").encode(), 'its list of failed workers is not like ["0:2", "1:3"]'),
        (GOOD.replace('["1:0"]', '"1:0"').encode(), 'its list of failed workers is not like ["0:2", "1:3"]'),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(content: bytes, words: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_run_trace(content)
    assert words in str(refused.value)
    assert len(str(refused.value)) < 200


@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=4))
def test_damage_is_refused_or_harmless(start: int, length: int, instead: bytes) -> None:
    content = GOOD.encode()
    try:
        parse_run_trace(content[:start] + instead + content[start + length % 20 :])
    except TraceError:
        return


def test_traces_are_told_from_plans_by_their_beginning() -> None:
    assert all(map(begins_like_a_trace, (b"{", b"[", b'\n  {"a"', b"\xef\xbb\xbf{")))
    assert not any(map(begins_like_a_trace, (b"", b"schedule\n", b"\x89plan\r\n\x1a", b"job a {")))
