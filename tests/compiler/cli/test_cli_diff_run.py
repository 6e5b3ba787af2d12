"""`recyclec diff PLAN TRACE` and the traces of plans, end to end on a small bundle."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Recyclec = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trace(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> str:
    """The plan for one failure as if it had run."""
    path = str(tmp_path / "run.json")
    assert recyclec("show", small_bundle, "--failures", "1", "--format", "trace", "-o", path) == (0, "", "")
    return path


def changed(trace: str, change: Callable[[dict[str, Any]], None]) -> str:
    path = Path(trace)
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    return trace


def test_a_plan_that_ran_as_planned(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("diff", small_bundle, trace)
    assert (code, words) == (0, "")
    lines = data.splitlines()
    assert lines[0] == f"small, failed: 2:1; step 0 of {trace}, the only one"
    assert lines[1].startswith("step 10.0 ms, planned 10.0 ms for 10 slots (+0.0 %): ops take as long as")
    assert lines[2].startswith("one slot is taken as 1.000 ms: ")
    assert lines[-1] == "order: as planned on every worker in every step"


def test_the_same_for_programs(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("diff", small_bundle, trace, "--json")
    found = json.loads(data)
    assert (code, words) == (0, "")
    assert found["verdict"].startswith("step 10.0 ms, planned 10.0 ms")
    assert (found["failed"], found["step"], found["warm_up"]) == ([[2, 1]], 0, [])
    assert (found["measured"], found["planned"]) == pytest.approx((10_000, 10_000))
    assert found["parts"] == pytest.approx({"ops": 0, "uneven_ops": 0, "waiting": 0}, abs=1e-6)
    assert (found["calibrated"], found["microseconds_per_unit"]) == (True, pytest.approx(1_000))
    assert {row["kind"] for row in found["ops"]} == {"F", "I", "W", "R", "O"}
    assert len(found["workers"]) == 5 and found["as_planned"]


def test_a_schedule_text_will_do(small_bundle: str, trace: str, recyclec: Recyclec, tmp_path: Path) -> None:
    text = str(tmp_path / "one.txt")
    recyclec("show", small_bundle, "--failures", "1", "--format", "schedule", "-o", text)
    assert recyclec("diff", text, trace)[1] == recyclec("diff", small_bundle, trace)[1]
    recyclec("show", small_bundle, "--failures", "0", "--format", "schedule", "-o", text)
    words = f"recyclec: error: {trace}: a run with other failures: it had 2:1 failed, {text} is for none\n"
    assert recyclec("diff", text, trace) == (1, "", words)


def test_peers_are_interchangeable(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    def swap(whole: dict[str, Any]) -> None:
        whole["otherData"]["failed"] = ["0:1"]
        for row in whole["traceEvents"]:
            if row["args"].get("worker") in ("0:1", "1:1"):
                row["args"]["worker"] = {"0:1": "1:1", "1:1": "2:1"}[row["args"]["worker"]]

    code, data, _ = recyclec("diff", small_bundle, changed(trace, swap))
    assert code == 0
    assert data.startswith("small, failed: 0:1; ")


def test_a_run_that_the_bundle_has_no_plan_for(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    def swap(whole: dict[str, Any]) -> None:
        del whole["otherData"]
        whole["traceEvents"] = [row for row in whole["traceEvents"] if row["args"].get("worker") != "0:1"]

    code, data, words = recyclec("diff", small_bundle, changed(trace, swap))
    assert (code, data) == (1, "")
    assert words == (
        f"recyclec: error: {small_bundle}: the run of {trace} had 0:1, 2:1 failed: "
        "the bundle has no plan for failures [0, 2] per stage; "
        "make one with `recyclec plan JOB --failed 0:1,2:1 -o PLAN`\n"
    )


def test_an_op_is_missing(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    def drop(whole: dict[str, Any]) -> None:
        whole["traceEvents"] = [row for row in whole["traceEvents"] if row["name"] != "W1.1"]

    code, data, words = recyclec("diff", small_bundle, changed(trace, drop))
    assert (code, data) == (1, "")
    assert words.startswith(f"recyclec: error: {trace}: step 0: worker ")
    assert words.endswith(" has not run W1.1, which is in its plan\n")


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"traceEvents": [{"ph": "X", "name": "gemm"}]}'])
def test_bad_traces(small_bundle: str, recyclec: Recyclec, tmp_path: Path, content: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    code, data, words = recyclec("diff", small_bundle, str(path))
    assert (code, data) == (1, "")
    assert words.startswith(f"recyclec: error: {path}: ")
    assert len(words.splitlines()) == 1


def test_usage(small_bundle: str, trace: str, recyclec: Recyclec) -> None:
    first = f"recyclec: error: {trace}: looks like a trace; the plan comes first, then the trace\n"
    assert recyclec("diff", trace, small_bundle) == (2, "", first)
    no_step = f"recyclec: error: {trace}: no step 4 in the trace: it holds only 0\n"
    assert recyclec("diff", small_bundle, trace, "--step", "4") == (2, "", no_step)
    no_trace = f"recyclec: error: --step needs a trace: {small_bundle} is none\n"
    assert recyclec("diff", small_bundle, small_bundle, "--step", "4") == (2, "", no_trace)
    assert recyclec("diff", small_bundle, trace, "--step", "0")[0] == 0
