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
