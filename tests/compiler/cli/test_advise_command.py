"""`recyclec advise` as users type it."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.cli.main import main
from tests.compiler.cli.test_simulate_command import JOB

TRACE = ("--trace", "poisson mtbf=20h repair=4h burst=20%:60s", "--hours", "40", "--draws", "2")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("advise")
    (folder / "tiny.job").write_text(JOB)
    path = str(folder / "tiny.plan")
    assert main(["compile", str(folder / "tiny.job"), "-o", path, "--quiet"]) == 0
    return path


@pytest.fixture(scope="module")
def document(plan: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("advice") / "advice.json"
    arguments = ["advise", plan, *TRACE, "--nodes", "3..6", "--price", "2/GPU-hour", "--quiet"]
    assert main([*arguments, "--format", "json", "-o", str(out)]) == 0
    return json.loads(out.read_text())


def test_every_number_of_machines_is_paid_for(document: Any) -> None:
    for option in document["options"]:
        assert sum(option["gpu_hours"].values()) == pytest.approx(option["machines"] * 40)
        assert option["cost_per_million"] == pytest.approx(2 * option["gpu_hours_per_million"])
    ours = {(one["machines"], one["spares"]) for one in document["options"] if one["policy"] == "ours"}
    assert ours == {(3, 0), (3, 1), (4, 0), (4, 1), (4, 2), (5, 1), (5, 2), (6, 2), (6, 4)}


def test_the_cheapest_is_advised(document: Any) -> None:
    ours = [one for one in document["options"] if one["policy"] == "ours"]
    assert document["advised"]["cost_per_million"] == min(one["cost_per_million"] for one in ours)
    assert document["why"][0].startswith("Advised: ")
    assert [one["holders"] for one in document["copies"]] == [1, 2]


def test_the_state_that_is_advised_comes_with_its_losses_and_the_next_best(document: Any) -> None:
    chosen = document["states"][document["state"]]
    words = [line for line in document["why"] if line.startswith("State: ")]
    assert f"lost at most {chosen['losses_a_year']:.2g} times a year" in words[0]
    assert f"costs {100 * chosen['lost_share']:.2g} % of the time" in words[0]
    safer = [
        one
        for one in document["states"]
        if one["owners"] > 0 and one["losses_a_year"] < chosen["losses_a_year"]
    ]
    assert len(words) == 1 + (chosen["owners"] > 0) + bool(safer)


def test_rarer_failures_cost_less(document: Any) -> None:
    shares = [share for *_, share in document["effective_training_time_by_interval"]["restart"]]
    assert shares[0] < shares[-1] <= 1


def test_a_throughput_that_is_out_of_reach(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", plan, *TRACE, "--nodes", "4", "--throughput", "1000000"]) == 0
    assert "No number of machines from 4 to 4 reaches 1,000,000 samples/s" in capsys.readouterr().out


def test_the_page_loads_nothing(plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", plan, *TRACE, "--nodes", "4", "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>") and page.count("<svg") == 3
    assert "<script" not in page and "MoEvement" in page


def test_mistakes(plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("0,add,a\n9,remove,a\n")
    assert main(["advise", plan, "--trace", str(trace)]) == 2
    assert "machines cannot be drawn from" in capsys.readouterr().err
    assert main(["advise", plan, *TRACE, "--nodes", "1"]) == 2
    assert "--nodes must reach 2" in capsys.readouterr().err
    for option, words, said in (
        ("--nodes", "9..3", "must go up from at least 1"),
        ("--nodes", "x", "must be like 28..36"),
        ("--nodes", "1..999", "over at most 64 numbers"),
        ("--nodes", "1" * 30, "to at most 65536"),
        ("--throughput", "1" * 30, "of up to 20 characters"),
        ("--throughput", "-3", "above 0"),
    ):
        with pytest.raises(SystemExit):
            main(["advise", plan, *TRACE, option, words])
        assert said in capsys.readouterr().err
