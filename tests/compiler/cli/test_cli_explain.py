"""`recyclec explain`, end to end on a small bundle."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import read_streams, write_bundle
from recycle_compiler.cli.main import main, parse_arguments
from recycle_runtime.plan.bundle import Bundle

Recyclec = Callable[..., tuple[int, str, str]]


def test_words_by_default(small_bundle: str, recyclec: Recyclec) -> None:
    """Six micro-batches on two live workers: three each, nine slots, and one for the optimizer."""
    code, data, words = recyclec("explain", small_bundle, "--failures", "1")
    assert (code, words) == (0, "")
    paragraphs = data.split("\n\n")
    assert paragraphs[0].startswith("small: 2 stages, 3 pipelines, 2 micro-batches each; failed: 2:1\n")
    assert "\nperiod 10 slots, optimal: no plan is faster;" in paragraphs[0]
    assert paragraphs[1].startswith(
        "bottleneck: stage 1\n  2 of 3 workers alive, 3 micro-batches on each, busy"
    )
    assert paragraphs[2].startswith("binding bound: load of stage 1, 10 slots\n")
    assert paragraphs[3].startswith("critical path: 10 slots, the window of stage 1\n")
    assert paragraphs[4].startswith("where the time of each stage goes, in percent of the period\n")
    assert paragraphs[5].startswith("what if, planned again, quickly; compared with 10 slots\n")
    assert "\n  without `decouple`: 23.1 % slower (period 13 slots, bound 13 slots)\n" in paragraphs[5]


def test_json(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("explain", small_bundle, "--failures", "1", "--json")
    found = json.loads(data)
    assert (code, words) == (0, "")
    assert (found["failed"], found["period"], found["status"]) == ([[2, 1]], 10, "optimal")
    assert found["critical_path"]["length"] == found["period"]
    assert found["bottleneck"]["microbatches_per_worker"] == [3, 3]
    assert found["what_if"]["mode"] == "plans"
    for stage in found["stage_times"]:
        assert sum(stage["time"].values()) == stage["alive"] * found["period"]


def test_the_plan_for_these_workers(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, _ = recyclec("explain", small_bundle, "--failed", "0:1", "--json", "--what-if", "none")
    assert (code, json.loads(data)["failed"]) == (0, [[0, 1]])


def test_without_a_number_the_plan_for_none(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, _ = recyclec("explain", small_bundle, "--what-if", "none")
    assert (code, data.splitlines()[0].rpartition("; ")[2]) == (0, "failed: none")
    assert "what if" not in data


def test_bounds_alone(small_bundle: str, recyclec: Recyclec) -> None:
    _, data, _ = recyclec("explain", small_bundle, "--failures", "1", "--what-if", "bounds")
    assert "what if, judged by bounds alone; compared with 10 slots\n" in data
    assert "\n  without `decouple`: at least 23.1 % slower (bound 13 slots)\n" in data


def test_the_same_words_twice(small_bundle: str, recyclec: Recyclec) -> None:
    argv = ("explain", small_bundle, "--failures", "2")
    assert recyclec(*argv) == recyclec(*argv)


def test_a_plan_that_is_not_there(small_bundle: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("explain", small_bundle, "--failures", "3")
    assert (code, data) == (2, "")
    assert words == "recyclec: error: no plan for 3 failures: the bundle plans for 0 to 2\n"


def test_a_file_that_is_no_bundle(small_job: str, recyclec: Recyclec) -> None:
    code, data, words = recyclec("explain", small_job)
    assert (code, data, len(words.splitlines())) == (1, "", 1)


def test_a_plan_that_lies_about_its_period(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> None:
    program = read_streams(Bundle.read(small_bundle), 0)
    liar = replace(program, claims=replace(program.claims, period=program.claims.period + 1))
    path = tmp_path / "liar.plan"
    write_bundle(path, source="", plans=[liar])
    code, data, words = recyclec("explain", str(path))
    assert (code, data) == (1, "")
    assert words == (
        f"recyclec: error: {path}: the plan does not take as long as it claims; `recyclec verify` says more\n"
    )


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", "x.plan", "--what-if", "guess"])
    assert stop.value.code == 2
    assert "must be one of plans, bounds, none, got guess" in capsys.readouterr().err
    assert parse_arguments(["explain", "x.plan"]).what_if is None
