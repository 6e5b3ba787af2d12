"""`recyclec plan --slow`: fewer micro-batches for workers that are slower than their peers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Recyclec = Callable[..., tuple[int, str, str]]


@pytest.fixture
def longer(tmp_path: Path, small_job: str) -> str:
    """The small job with more to share."""
    path = tmp_path / "longer.job"
    path.write_text(Path(small_job).read_text().replace("microbatches = 2", "microbatches = 6"))
    return str(path)


def test_a_slow_worker_has_fewer_micro_batches(longer: str, recyclec: Recyclec, tmp_path: Path) -> None:
    path = str(tmp_path / "slow.plan")
    code, data, words = recyclec("plan", longer, "--slow", "1:1=3", "-o", path)
    assert (code, data) == (0, "")
    said, wrote = words.splitlines()
    assert said == (
        "recyclec: with 1:1 3 times slower a step takes 25 slots (with equal shares 57); "
        "1:1 has 2 of 18 micro-batches"
    )
    assert wrote == f"recyclec: wrote {path}"
    assert recyclec("verify", path)[0] == 0
    code, data, _ = recyclec("retime", path, "--times", longer, "--slow", "1:1=3", "--json")
    assert (code, json.loads(data)["step_ticks"]) == (0, 25000.0)


def test_with_failures_and_in_other_forms(longer: str, recyclec: Recyclec) -> None:
    argv = ("plan", longer, "--failed", "0:0", "--slow", "2:1=2,1:0=1.5")
    code, data, words = recyclec(*argv, "--format", "json")
    plan = json.loads(data)
    assert (code, plan["failed"]) == (0, [[0, 0]])
    assert words.startswith("recyclec: with 1:0 1.5 times, 2:1 2 times slower a step takes ")
    mine = [op for op in plan["ops"] if op["kind"] == "F" and op["worker"] == [2, 1]]
    assert f"2:1 has {len(mine)} of 18 micro-batches" in words
    assert recyclec(*argv, "--format", "json", "--quiet") == (0, data, "")
    assert recyclec(*argv)[0] == 0


@pytest.mark.parametrize(
    ("options", "exit_code", "sentence"),
    [
        (["--slow", "3:0=2"], 2, "worker 3:0 does not exist: pipelines are 0 to 2, stages 0 to 1"),
        (["--slow", "1:1=2", "--failed", "1:1"], 2, "1:1 cannot be slow: --failed counts it as failed"),
        (["--slow", "1:1=2", "--techniques", "stagger"], 1, "without the technique `adaptive`"),
        (["--slow", "1:1=2", "--failed", "0:0,1:0,2:0"], 3, "stage 0 has no live worker"),
    ],
)
def test_what_cannot_be(
    options: list[str], exit_code: int, sentence: str, small_job: str, recyclec: Recyclec
) -> None:
    code, data, words = recyclec("plan", small_job, *options)
    assert (code, data) == (exit_code, "")
    assert words.startswith("recyclec: error: ")
    assert sentence in words
    assert words.count("\n") == 1


@pytest.mark.parametrize("options", [["--slow", "1:1"], ["--slow", "1:1=0"], ["--slow", "1:1=1e9"]])
def test_words_that_are_not_understood(
    options: list[str], small_job: str, recyclec: Recyclec, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        recyclec("plan", small_job, *options)
    assert stop.value.code == 2
    assert "error:" in capsys.readouterr().err


LAYERED = """job layered {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 4 }
  layers   { count = 8  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
}
"""


@pytest.fixture
def layered(tmp_path: Path) -> str:
    path = tmp_path / "layered.job"
    path.write_text(LAYERED)
    return str(path)


def test_a_slow_worker_may_get_fewer_layers(layered: str, recyclec: Recyclec, tmp_path: Path) -> None:
    path = str(tmp_path / "slow.plan")
    code, data, words = recyclec("plan", layered, "--workers", "6", "--slow", "3", "-o", path, "--json")
    said = json.loads(data)
    (slow,) = said["slow"]
    assert (code, slow["factor"]) == (0, 3.0)
    assert f"the fastest cut found for 6 workers is {said['layout']}\n" in words
    assert recyclec("verify", path)[0] == 0
    code, data, _ = recyclec("show", path)
    assert code == 0 and f"layers x workers of each stage: {said['layout'].replace(',', ' ')}\n" in data
    name = "{}:{}".format(*slow["worker"])
    code, data, _ = recyclec("retime", path, "--times", layered, "--slow", f"{name}=3", "--json")
    assert json.loads(data)["step_ticks"] == said["step_ticks"]
    own = recyclec("plan", layered, "--slow", "0:0=3", "-o", path, "--json")[1]
    assert json.loads(own)["layout"] is None
    assert said["step_ticks"] < json.loads(own)["step_ticks"]


@pytest.mark.parametrize(
    ("options", "exit_code", "sentence"),
    [
        (["--workers", "6", "--slow", "0:1=3"], 2, "give --slow factors without names, as in --slow 3,1.5"),
        (["--slow", "3"], 2, "--slow must name the workers, as in --slow 1:2=3"),
        (["--workers", "2", "--slow", "3,2"], 2, "--slow has 2 factors: not all of --workers can be slow"),
        (["--workers", "6", "--slow", "3,3,3,3"], 3, "with no more slow ones on a stage than others"),
        (["--workers", "6", "--slow", "3", "--json"], 2, "--json goes with --slow and -o FILE.plan"),
        (["--workers", "6", "--slow", "2", "--techniques", "none"], 3, "no other cut for layered"),
    ],
)
def test_slow_workers_for_whom_no_cut_can_be_chosen(
    options: list[str], exit_code: int, sentence: str, layered: str, recyclec: Recyclec
) -> None:
    code, data, words = recyclec("plan", layered, *options)
    assert (code, data) == (exit_code, "")
    assert sentence in words and words.count("\n") == 1
