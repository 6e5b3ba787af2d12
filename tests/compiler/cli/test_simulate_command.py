"""`recyclec simulate` as users type it."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.fleet.policy import NAMES, OF_EXPERTS, OF_RANKS

JOB = """job tiny {
  parallel { pipeline = 2  data = 2 }
  batch    { global = 32  micro = 4 }
  profile  { unit = ms  forward = 10  backward_input = 10  backward_weight = 10  optimizer = 5 }
  tolerate { failures = 1 }
}
"""
SIMPLE = "elastic,restart,fault-scaled,fault-free,zero-bubble"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job, its bundle, and a trace."""
    folder = tmp_path_factory.mktemp("simulate")
    (folder / "tiny.job").write_text(JOB)
    assert main(["compile", str(folder / "tiny.job"), "-o", str(folder / "tiny.plan"), "--quiet"]) == 0
    (folder / "t.csv").write_text("0,add,a\n0,add,b\n0,add,c\n0,add,d\n1800000,remove,b\n3600000,add,b\n")
    return folder


def simulate(folder: Path, *more: str, source: str = "tiny.plan", trace: str = "t.csv") -> int:
    path = folder / trace
    return main(["simulate", str(folder / source), "--trace", str(path) if path.exists() else trace, *more])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--against", SIMPLE) == 0
    shown, said = capsys.readouterr()
    lines = shown.splitlines()
    assert lines[0] == "tiny: 4 workers, 4 GPUs, 1 h of t.csv"
    assert lines[2].split("  ")[0] == "policy"
    assert "samples/s" in lines[2]
    assert [line.split()[0] for line in lines[3:9]] == ["ours", *SIMPLE.split(",")]
    assert "100 % is our plan without failures" in shown
    assert "machines of the job were down for 0.5" in shown
    assert said == ""


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--against", SIMPLE, "--format", "json") == 0
    found = document(capsys)
    assert (found["job"], found["trace"], found["hours"], found["gpus"]) == ("tiny", "t.csv", 1.0, 4)
    assert list(found["policies"]) == ["ours", *SIMPLE.split(",")]
    scaled = found["policies"]["fault-scaled"]
    assert scaled["unit"] == "samples/s"
    whole = found["policies"]["fault-free"]["average"]
    assert scaled["average"] == pytest.approx(whole * 7 / 8)
    assert scaled["timeline"] == [
        [0.0, 4, pytest.approx(whole)],
        [0.5, 3, pytest.approx(whole * 3 / 4)],
        [1.0, 3, pytest.approx(whole * 3 / 4)],
    ]
    reference = found["policies"]["zero-bubble"]
    assert (reference["share"], reference["gpu_hours_lost"]) == (1.0, 0.0)
    ours = found["policies"]["ours"]
    assert ours["gpu_hours_lost"] == pytest.approx((1 - ours["share"]) * 4)
    assert ours["log"][0]["why"].startswith("0:1 failed")


def test_all_policies_are_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--format", "json") == 0
    found = document(capsys)["policies"]
    assert tuple(found) == tuple(name for name in NAMES if name not in OF_EXPERTS | OF_RANKS)
    assert all("note" in policy for policy in found.values())


def test_a_job_gives_the_same_as_its_bundle(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[str] = []
    for source in ("tiny.job", "tiny.plan"):
        assert simulate(folder, "--against", SIMPLE, "--jobs", "1", source=source) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_the_page_and_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert simulate(folder, "--against", SIMPLE, "--format", "html", "-o", str(out)) == 0
    assert capsys.readouterr().out == ""
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_words_and_hours(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--against", "fault-scaled", "--format", "json")
    assert simulate(folder, *more, trace="every 30m repair 10m") == 0
    assert document(capsys)["hours"] == 12
    assert simulate(folder, *more, "--hours", "2.5", "--seed", "7", trace="every 30m") == 0
    found = document(capsys)
    assert (found["hours"], found["trace"]) == (2.5, "every 30m")
    assert "seed 7" in found["about"]
    assert simulate(folder, *more, "--hours", "0.25") == 0
    assert document(capsys)["policies"]["fault-scaled"]["share"] == pytest.approx(
        document_share(folder, capsys), rel=1e-6
    )


def document_share(folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    assert simulate(folder, "--against", "fault-free", "--format", "json", trace="none") == 0
    return document(capsys)["policies"]["fault-free"]["share"]


def test_the_same_seed_gives_the_same_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[str] = []
    for seed in ("3", "3", "4"):
        more = ("--against", SIMPLE, "--format", "json", "--seed", seed)
        assert simulate(folder, *more, trace="poisson mtbf=8h repair=1h") == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_samples_and_costs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    averages: list[float] = []
    for more in ((), ("--samples", "64"), ("--costs", "detection=5m,undone=0")):
        assert simulate(folder, "--against", "ours", "--format", "json", *more) == 0
        averages.append(document(capsys)["policies"]["ours"]["average"])
    assert averages[1] == pytest.approx(2 * averages[0])
    assert averages[2] < 0.95 * averages[0]


def test_jitter_slows_everybody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    averages: list[dict[str, float]] = []
    for jitter in ("0", "20%"):
        assert simulate(folder, "--against", "fault-free", "--format", "json", "--jitter", jitter) == 0
        averages.append({name: one["average"] for name, one in document(capsys)["policies"].items()})
    assert averages[1]["ours"] < averages[0]["ours"]
    assert averages[1]["fault-free"] < averages[0]["fault-free"]


def test_too_few_plans_are_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--against", "ours", "--hours", "2.5", trace="every 1h") == 0
    assert "`--failures 2` when it is compiled would add the rest" in capsys.readouterr().err
    assert simulate(folder, "--against", "ours", "--quiet", trace="every 1h") == 0
    assert capsys.readouterr().err == ""


def test_more_failures_than_any_plan_can_have(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "all.csv").write_text('{"at": 60, "failed": ["0:0", "0:1", "1:0", "1:1"]}\n{"at": 90}\n')
    assert simulate(folder, "--against", "ours", trace="all.csv") == 0
    said = capsys.readouterr().err
    assert "would add those for up to 2, and with more down there are too few for every stage" in said


def test_options_without_effect_are_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--failures", "1", "--jobs", "1", "--slot", "2s")
    assert simulate(folder, "--against", "fault-free", *more) == 0
    said = capsys.readouterr().err
    assert all(f"note: {option} has no effect" in said for option in ("--failures", "--jobs", "--slot"))
    assert simulate(folder, "--against", "fault-free", *more[:4], source="tiny.job") == 0
    assert "no effect" not in capsys.readouterr().err


def test_layers_and_machines_without_effect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "workers.jsonl").write_text('{"at": 60, "failed": ["0:0"]}\n{"at": 90}\n')
    more = ("--layers", "8", "--gpus-per-node", "2")
    assert simulate(folder, "--against", "fault-free", *more, trace="workers.jsonl") == 0
    said = capsys.readouterr().err
    assert "--layers has no effect: only chameleon, elaswave, oobleck and varuna partition the model" in said
    assert "note: --gpus-per-node and --layout have no effect: workers.jsonl names workers" in said
    assert simulate(folder, "--against", "varuna", *more) == 0
    assert "no effect" not in capsys.readouterr().err


def test_machines_with_several_gpus(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--against", "elastic", "--gpus-per-node", "2", "--format", "json")
    assert simulate(folder, *more, trace="every 5h") == 0
    found = document(capsys)["policies"]["elastic"]["timeline"]
    assert {live for _, live, _ in found} == {4, 2, 0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0,add,a\n9,remove,b\n", "t2.csv:2:10: error[impossible]"),
        ("", "the trace holds no events"),
        ("what is this\n", "t2.csv:1:1: error[format]"),
    ],
)
def test_bad_traces(content: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "t2.csv").write_text(content)
    assert simulate(folder, trace="t2.csv") == 1
    shown, said = capsys.readouterr()
    assert shown == ""
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiny.plan", "--trace", "nope.csv"], "nope.csv: error[unreadable]: the trace does not exist"),
        (["tiny.plan", "--trace", "."], "the trace is a folder"),
        (["tiny.plan", "--trace", "evry 30m"], "did you mean `every`?"),
        (["tiny.plan", "--trace", "a\0b"], "is no file name"),
        (["nope.plan", "--trace", "none"], "nope.plan: no such file or directory"),
        (["nope.job", "--trace", "none"], "nope.job: error[unreadable]: the file does not exist"),
        (["t.csv", "--trace", "none"], "t.csv:1:1: error"),
    ],
)
def test_exit_code_1(
    arguments: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["simulate", *arguments]) == 1
    shown, said = capsys.readouterr()
    assert shown == ""
    assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trace", ""], "--trace needs a file or words"),
        (["--trace", "none", "--layers", "1"], "--layers must be from 2, one for each stage, to 65536"),
        (["--trace", "t.csv", "-o", "t.csv"], "t.csv is the trace"),
        (["--trace", "none", "-o", "tiny.plan"], "tiny.plan is the input"),
    ],
)
def test_exit_code_2(
    arguments: list[str],
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["simulate", "tiny.plan", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_job_that_cannot_be_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(folder, "--failures", "3", source="tiny.job", trace="none") == 3
    assert "no plan for tiny" in capsys.readouterr().err


def test_gpus_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wide.job").write_text(JOB.replace("data = 2", "data = 2  tensor = 4"))
    assert simulate(folder, "--gpus-per-node", "6", source="wide.job", trace="none") == 2
    assert "a worker has 4 GPUs and a machine 6" in capsys.readouterr().err


LAYERED = """job layered {
  parallel { pipeline = 2  data = 3  cut = [3, 1] }
  batch    { microbatches = 4 }
  layers   {
    unit = ms
    forward = [4 * 10]
    backward_input = [4 * 10]
    backward_weight = [4 * 10]
    optimizer = 1
  }
  tolerate { failures = 1 }
}
"""
"""Its own cut is uneven, so that another one pays."""


@pytest.mark.parametrize("source", ["layered.job", "layered.plan"])
def test_a_job_in_layers_is_cut_anew(source: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "layered.job").write_text(LAYERED)
    plan = str(folder / "layered.plan")
    assert main(["compile", str(folder / "layered.job"), "-o", plan, "--quiet"]) == 0
    assert simulate(folder, "--format", "json", source=source, trace="every 10h repair 2h") == 0
    policies = document(capsys)["policies"]
    ours = policies["ours"]
    words = [entry["why"] for entry in ours["log"]]
    assert any(why.startswith("cut to ") for why in words)
    assert ours["share"] <= 1
    assert ours["share"] > policies["fault-free"]["share"]


def test_a_job_that_leaves_its_grid_to_the_compiler(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "free.job").write_text(
        LAYERED.replace("pipeline = 2  data = 3  cut = [3, 1]", "workers = 7").replace(
            "microbatches = 4", "microbatches = 12"
        )
    )
    more = ("--format", "json", "--against", "fault-free")
    assert simulate(folder, *more, source="free.job", trace="every 10h repair 2h") == 0
    out, said = capsys.readouterr()
    assert json.loads(out)["workers"] == 7
    assert "places vacant" in said


def test_what_varies_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the table of periods, which are those of the times as written, and by that of means."""
    (tmp_path / "varies.job").write_text(JOB.replace("optimizer = 5", "optimizer = 5  spread = 20%"))
    source, plan = str(tmp_path / "varies.job"), str(tmp_path / "varies.plan")
    assert main(["compile", source, "-o", plan]) == 0
    assert "these periods are of the times as written" in capsys.readouterr().err
    assert main(["simulate", plan, "--trace", "none", "--against", "fault-free"]) == 0
    assert "by 20.0 % from micro-batch to micro-batch and 0.0 % by chance" in capsys.readouterr().err
