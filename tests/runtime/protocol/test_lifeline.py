"""Processes that end with the first one of their job: with real ones."""

import ctypes
import os
import signal
import time
from collections.abc import Callable

import pytest

from recycle_runtime.protocol.lifeline import FROM_PARENT, Lifeline, hold_on
from tests.runtime.protocol.children import child


def started(lifeline: Lifeline, then: Callable[[], None]) -> int:
    """A process that holds on, and is known to by the time this returns."""
    ready, tell = os.pipe()

    def life() -> None:
        # As in a process that was started: the other end is not passed on.
        os.close(lifeline._writer)  # pyright: ignore[reportPrivateUsage]
        hold_on()
        os.write(tell, b"!")
        then()

    pid = child(life)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell)
    return pid


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(600)


@pytest.fixture
def lifeline(monkeypatch: pytest.MonkeyPatch) -> Lifeline:
    line = Lifeline()
    monkeypatch.setenv(FROM_PARENT, line.environment[FROM_PARENT])
    return line


def test_it_is_cut(lifeline: Lifeline) -> None:
    first, second = (started(lifeline, lambda: time.sleep(600)) for _ in range(2))
    lifeline.cut()
    for pid in (first, second):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_neither_the_interpreter_nor_a_handler_is_in_the_way(lifeline: Lifeline) -> None:
    pid = started(lifeline, hold_the_interpreter)
    lifeline.cut()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_one_that_comes_too_late(lifeline: Lifeline) -> None:
    reader = os.dup(lifeline.reader)
    lifeline.cut()
    os.environ[FROM_PARENT] = str(reader)
    pid = child(hold_on)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    os.close(reader)


def test_the_child_of_one_that_has_ended(lifeline: Lifeline) -> None:
    """As a worker whose agent was killed: it lives on, and ends with the job."""
    ready, tell = os.pipe()

    def agent() -> None:
        os.close(lifeline._writer)  # pyright: ignore[reportPrivateUsage]
        hold_on()
        if os.fork() == 0:
            hold_on()
            os.write(tell, os.getpid().to_bytes(4, "little"))
            time.sleep(600)
            os._exit(7)
        time.sleep(600)

    pid = child(agent)
    worker = os.pidfd_open(int.from_bytes(os.read(ready, 4), "little"))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    signal.pidfd_send_signal(worker, 0)
    lifeline.cut()
    with pytest.raises(ProcessLookupError):
        for _ in range(3000):
            signal.pidfd_send_signal(worker, 0)
            time.sleep(0.01)
    for descriptor in (worker, ready, tell):
        os.close(descriptor)


def test_nobody_to_hold_on_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FROM_PARENT, raising=False)
    hold_on()
    monkeypatch.setenv(FROM_PARENT, "1000000")
    hold_on()
