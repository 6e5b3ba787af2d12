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


def run_of(bundle: str, recyclec: Recyclec, folder: Path, *which: str) -> dict[str, Any]:
    """The trace of a plan, as if it had run."""
    path = folder / "part.json"
    assert recyclec("show", bundle, *which, "--format", "trace", "-o", str(path))[0] == 0
    return json.loads(path.read_text())


def joined(parts: list[tuple[str, dict[str, Any], dict[str, str]]], path: Path) -> str:
    """A run of one step under each plan: workers with other names than their roles where it is said."""
    events: list[dict[str, Any]] = []
    generations: list[dict[str, Any]] = []
    for step, (plan, part, names) in enumerate(parts):
        ran = [event for event in part["traceEvents"] if event["ph"] == "X"]
        roles = {event["args"]["worker"] for event in ran}
        workers = {role: names.get(role, role) for role in roles}
        for event in ran:
            event["ts"] += 1_000_000 * step
            event["args"] = {"step": step, "worker": workers[event["args"]["worker"]]}
        events += ran
        generations.append({"step": step, "plan": plan, "roles": {workers[role]: role for role in roles}})
    path.write_text(
        json.dumps({"otherData": {"failed": [], "generations": generations}, "traceEvents": events})
    )
    return str(path)


def test_a_run_that_was_cut_anew(layered_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    """The last cut is compared unless a step of the first one is asked for; workers keep their names."""
    own = run_of(layered_bundle, recyclec, tmp_path, "--cut", "own")
    recut = run_of(layered_bundle, recyclec, tmp_path, "--cut", "0")
    layout, names = recut["otherData"]["layout"], {"0:0": "1:1", "1:1": "0:0"}
    path = joined([("0 0", own, {}), (layout, recut, names)], tmp_path / "run.json")
    code, data, words = recyclec("diff", layered_bundle, path)
    assert (code, words) == (0, "")
    head, verdict, *_ = data.splitlines()
    assert head == f"layered, {layout}; step 1 of {path}, the only one"
    assert "ops take as long as" in verdict
    assert data.splitlines()[-1] == "order: as planned on every worker in every step"
    code, data, words = recyclec("diff", layered_bundle, path, "--step", "0")
    assert (code, words) == (0, "")
    assert data.startswith(f"layered, failed: none; step 0 of {path}")


def test_what_a_run_with_several_plans_does_not_show(
    layered_bundle: str, recyclec: Recyclec, tmp_path: Path
) -> None:
    own = run_of(layered_bundle, recyclec, tmp_path, "--cut", "own")
    again = run_of(layered_bundle, recyclec, tmp_path, "--cut", "own")
    path = joined([("0 0", own, {}), ("0 3", again, {})], tmp_path / "run.json")
    code, data, words = recyclec("diff", layered_bundle, path)
    assert (code, data) == (1, "")
    assert f"has no plan 0 3, which steps 1 to 1 of {path} have run: it was made during the run" in words

    def lose(whole: dict[str, Any]) -> None:
        whole["traceEvents"] = [one for one in whole["traceEvents"] if one["args"]["worker"] != "1:1"]

    code, data, words = recyclec("diff", layered_bundle, changed(path, lose), "--step", "0")
    assert (code, data) == (1, "")
    assert "worker 1:1 has left no track of steps 0 to 0: it failed before the run ended" in words
    changed(path, lambda whole: whole["otherData"]["generations"][0].pop("plan"))
    code, data, words = recyclec("diff", layered_bundle, path)
    assert (code, data) == (1, "") and "does not say which plan its generations have run" in words
