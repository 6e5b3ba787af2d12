"""Processes that a parent keeps: how often they are started again, and how they are asked to end."""

import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from recycle_runtime.launcher import kept_process
from recycle_runtime.launcher.kept_process import KeptProcess, SupervisorError
from recycle_runtime.protocol.lifeline import Lifeline


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """An agent dies so many seconds after it was started, and is looked at."""
    now = 0.0

    def start(_: KeptProcess) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    def die(seconds: float) -> None:
        nonlocal now
        now += seconds
        agent.process.wait()
        assert agent.look() is None

    monkeypatch.setattr(KeptProcess, "_start", start)
    monkeypatch.setattr(kept_process.time, "monotonic", lambda: now)
    agent = KeptProcess("agent", lambda: [], {}, Lifeline())
    return die


def test_the_sixth_death_is_the_last_and_says_why(dying: Callable[[float], None]) -> None:
    for _ in range(5):
        dying(1.0)
    with pytest.raises(SupervisorError) as error:
        dying(1.0)
    assert str(error.value) == (
        "the agent has died 6 times, last by signal 9, and is not started again: "
        "5 restarts are allowed, and one is forgotten every 120 s"
    )


def test_one_that_dies_now_and_then_is_always_started_again(dying: Callable[[float], None]) -> None:
    for _ in range(20):
        dying(120.0)


def test_a_job_started_in_the_background_of_a_script_hears_its_parent() -> None:
    """A shell has it ignore SIGINT, which the first node passes on to its coordinator."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        heard = subprocess.run(
            [sys.executable, "-c", code],
            preexec_fn=partial(kept_process.stand_apart, ()),
            capture_output=True,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard.stdout == "True\n"
