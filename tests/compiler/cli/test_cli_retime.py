"""`recyclec retime`: a plan with the times of another job."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.cli.main import parse_arguments
from tests.conftest import SMALL

Recyclec = Callable[..., tuple[int, str, str]]


@pytest.fixture
def times(tmp_path: Path) -> Callable[[str, str], str]:
    """The small job with something else in it."""

    def write(old: str, new: str) -> str:
        path = tmp_path / "times.job"
        path.write_text(SMALL.replace(old, new))
        return str(path)

    return write


def test_its_own_times_give_the_period(small_bundle: str, small_job: str, recyclec: Recyclec) -> None:
    for failures, period in ((0, 8), (1, 10), (2, 10)):
        said = recyclec("retime", small_bundle, "--failures", str(failures), "--times", small_job)
        text = f"a step takes {period} slots with these times, {period} as planned (+0.0 %)\n"
        assert said == (0, text, "")


def test_other_times(small_bundle: str, times: Callable[[str, str], str], recyclec: Recyclec) -> None:
    longer = times("forward = 1", "forward = [1, 3]")
    code, data, words = recyclec("retime", small_bundle, "--times", longer, "--json")
    assert (code, words) == (0, "")
    # Stage 1 has two micro-batches of 3 + 1 + 1 slots and the optimizer, and has to wait for one slot.
    assert json.loads(data) == {"job": "small", "failed": [], "planned_ticks": 8000, "step_ticks": 12000.0}


def test_a_slow_worker_holds_everybody_up(small_bundle: str, small_job: str, recyclec: Recyclec) -> None:
    argv = ("retime", small_bundle, "--times", small_job, "--slow", "1:1=2,0:0=1.5", "--json")
    step = json.loads(recyclec(*argv)[1])["step_ticks"]
    assert step >= 14000
    gone = recyclec("retime", small_bundle, "--failed", "1:1", "--times", small_job, "--slow", "1:1=2")
    assert gone == (2, "", "recyclec: error: worker 1:1 cannot be slow: this plan counts it as failed\n")


def test_a_job_of_another_shape_is_refused(
    small_bundle: str, times: Callable[[str, str], str], recyclec: Recyclec
) -> None:
    path = times("microbatches = 2", "microbatches = 3")
    code, data, words = recyclec("retime", small_bundle, "--times", path)
    assert (code, data) == (1, "")
    assert words == (
        f"recyclec: error: {path}: a job of another shape: 2 stages, 3 pipelines, 3 micro-batches; "
        f"{small_bundle} is for 2 stages, 3 pipelines, 2 micro-batches\n"
    )
    path = times("profile  {", "profile  { unit = ms ")
    assert recyclec("retime", small_bundle, "--times", path)[2] == (
        f"recyclec: error: {path}: times in ms and a plan in slot do not compare\n"
    )


def test_who_is_left_steps_more_of_a_sharded_state(
    small_bundle: str, times: Callable[[str, str], str], tmp_path: Path, recyclec: Recyclec
) -> None:
    """Two workers of each stage step two thirds of the state while three are there, and all of it then."""
    path = times("optimizer = 1 }", "optimizer = 30  gather = 1 }\n  optimizer { state = sharded }")
    plan = str(tmp_path / "sharded.plan")
    assert recyclec("--quiet", "compile", path, "-o", plan)[0] == 0
    for failures in (0, 1):
        argv = ("retime", plan, "--failures", str(failures), "--times", path, "--json")
        found = json.loads(recyclec(*argv)[1])
        assert found["step_ticks"] == found["planned_ticks"] > (20 + 10 * failures) * 1000
    code, _, words = recyclec("retime", small_bundle, "--times", path)
    assert code == 1 and "has the optimizer's state in shards, the other whole" in words


@pytest.mark.parametrize("word", ["1:2", "1:2=", "1:2=0", "1:2=-1", "1=2", "1:2=1e9", "1:2=x", "1:2=2,"])
def test_a_factor_must_be_a_factor(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse_arguments(["retime", "x.plan", "--times", "x.job", "--slow", word])
    assert stop.value.code == 2
    assert "must be" in capsys.readouterr().err
