"""`recycle-run local` that is told to end takes all its processes along, and says so by its exit code."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recycle_runtime.cli.main import main
from recycle_runtime.logs import settings
from tests.runtime.cli.test_cli_logging import LINE
from tests.runtime.recovery.watched import processes_of
from tests.runtime.training.compare import MLP

LONG_ENOUGH = 300
"""Seconds after which a test has hung."""


@contextmanager
def running(bundle: str, state: Path, *options: str) -> Generator["subprocess.Popen[str]"]:
    """A job that trains; what it runs is in processes whose command names the folder."""
    command = [sys.executable, "-m", "recycle_runtime.cli", "local", bundle, "--program", MLP]
    command += ["--steps", "1000000", "--plan-ahead", "off", "--replan", "off"]
    child = subprocess.Popen(
        [*command, "--log-file", str(state / "log"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As from a shell, so that `timeout` and terminals reach it by its group.
        process_group=0,
    )
    try:
        wait_for_step(child)
        yield child
    finally:
        child.kill()
        child.communicate()


def wait_for_step(child: "subprocess.Popen[str]") -> None:
    assert child.stderr is not None
    while not child.stderr.readline().startswith("step "):
        assert child.poll() is None


def end(child: "subprocess.Popen[str]") -> str:
    """Its last words, once nobody holds stdout and stderr: coordinator, agent and workers are gone."""
    _, words = child.communicate(timeout=LONG_ENOUGH)
    return words.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "how"),
    [
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_a_signal_ends_the_whole_job(
    number: signal.Signals, code: int, how: str, small_bundle: str, tmp_path: Path
) -> None:
    """To the whole group, as terminals and `timeout` send it."""
    with running(small_bundle, tmp_path) as child:
        os.killpg(child.pid, number)
        assert end(child) == f"recycle-run: error: {how}"
    assert child.returncode == code


def check_log(log: Path) -> None:
    """Every process of a job with six workers has written to it."""
    assert settings().options() == ["--log-level", "debug", "--log-file", str(log)]
    lines = log.read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    assert {"coordinator", "agent"} <= {line.split(": starts as ")[-1] for line in lines}
    started = {line.split()[3] for line in lines if "recycle_runtime.agent.agent: process" in line}
    assert started == {f"worker={pipeline}:{stage}" for pipeline in range(3) for stage in range(2)}


@pytest.mark.parametrize("who", ["first", pytest.param("all", marks=pytest.mark.slow)])
def test_the_last_checkpoint_and_the_command_that_goes_on(
    small_bundle: str, tmp_path: Path, who: str
) -> None:
    """True if the first process is told to end, or all of them at once, as Slurm does."""
    kept, metrics = tmp_path / "kept", tmp_path / "metrics"
    with running(small_bundle, tmp_path, "--checkpoint", str(kept), "--metrics", str(metrics)) as child:
        told = [child.pid] if who == "first" else sorted(processes_of(tmp_path), reverse=True)
        assert who == "first" or len(told) > 6
        for pid in told:
            os.kill(pid, signal.SIGTERM)
        words = end(child)
    assert child.returncode == 143
    found = re.fullmatch(
        r"recycle-run: error: terminated; (.+) has the first (\d+) steps: resume from it with `(.+)`", words
    )
    assert found is not None, words
    path, steps, command = found.groups()
    assert Path(path) == kept / f"step-{int(steps):08}"
    assert all((folder / "manifest.json").exists() for folder in kept.iterdir())
    goes_on = shlex.split(command)[1:]
    goes_on[goes_on.index("--steps") + 1] = str(int(steps) + 1)
    assert main(["--quiet", *goes_on, "--log-level", "debug"]) == 0
    check_log(tmp_path / "log")
    rows = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert rows == list(range(int(steps) + 1))


def test_a_job_that_was_stopped_for_a_while_and_then_killed(small_bundle: str, tmp_path: Path) -> None:
    """As by ctrl-Z and `fg`: nobody has failed, and every step is made by all. Nothing outlives a kill."""
    with running(small_bundle, tmp_path, "--heartbeat-timeout", "0.5") as child:
        child.send_signal(signal.SIGTSTP)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        # Four times the limit for heartbeats, by a clock that nothing here is compared with.
        subprocess.run(["sleep", "2"], check=True)
        child.send_signal(signal.SIGCONT)
        for _ in range(5):
            wait_for_step(child)
        assert " regroup " not in (tmp_path / "log").read_text()
        assert processes_of(tmp_path)
        child.kill()
        # Workers have these open too.
        child.communicate(timeout=LONG_ENOUGH)
    assert processes_of(tmp_path) == []
