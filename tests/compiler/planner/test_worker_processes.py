"""Tasks in processes of their own: every result once, errors as they were raised, no process left."""

import gc
import multiprocessing
import os
import signal
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from recycle_compiler.planner.worker_processes import ProcessError, running

MANY = 50
LARGE = 1 << 20
"""Bytes that no pipe takes at once."""


def double(number: int) -> int:
    return 2 * number


def large(number: int) -> bytes:
    return bytes([number]) * LARGE


def raise_it(error: Exception) -> None:
    raise error


def end_by(number: int) -> None:
    os.kill(os.getpid(), number)


def leave(code: int) -> None:
    os._exit(code)


def send_half(_: int) -> None:
    """Write the length of a result and not all of it, as a process does that is killed meanwhile."""
    (pipe,) = (each.fileno() for each in gc.get_objects() if isinstance(each, Connection))
    os.write(pipe, struct.pack("!i", 1_000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_task_is_done_once(processes: int) -> None:
    with running(processes) as run:
        assert sorted(run(double, range(MANY))) == [2 * number for number in range(MANY)]
        assert list(run(double, [])) == []
        assert sorted(run(large, range(3))) == [large(number) for number in range(3)]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_task_is_asked_for_when_somebody_is_free(processes: int) -> None:
    asked: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(MANY):
            asked.append(number)
            yield number

    with running(processes) as run:
        for done, _ in enumerate(run(double, tasks()), start=1):
            assert len(asked) <= done - 1 + processes


def test_no_more_processes_than_tasks() -> None:
    with running(8) as run:
        assert list(run(double, [1])) == [2]
        assert len(multiprocessing.active_children()) == 1


def test_an_error_is_raised_here_and_says_where_it_was() -> None:
    with pytest.raises(ArithmeticError, match="no such number") as caught, running(2) as run:
        list(run(raise_it, [ArithmeticError("no such number")]))
    assert "in raise_it" in caught.value.__notes__[0]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGRTMIN + 1])
def test_a_process_ended_by_a_signal(number: int) -> None:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    with pytest.raises(ProcessError, match=f"was ended by {name}$") as caught, running(2) as run:
        list(run(end_by, [number, 0, 0]))
    assert not caught.value.crashed
    assert multiprocessing.active_children() == []


def test_a_process_that_crashed() -> None:
    with pytest.raises(ProcessError, match="was ended by SIGSEGV") as caught, running(2) as run:
        list(run(end_by, [signal.SIGSEGV]))
    assert caught.value.crashed


def test_a_process_that_left() -> None:
    with pytest.raises(ProcessError, match="ended with exit code 5") as caught, running(2) as run:
        list(run(leave, [5]))
    assert caught.value.crashed


def test_a_process_killed_while_it_hands_over_a_result() -> None:
    with pytest.raises(ProcessError, match="was ended by SIGKILL"), running(2) as run:
        list(run(send_half, range(3)))
    assert multiprocessing.active_children() == []


def test_a_process_killed_between_two_runs() -> None:
    with pytest.raises(ProcessError, match="was ended by SIGKILL"), running(2) as run:
        assert list(run(double, [1])) == [2]
        (process,) = multiprocessing.active_children()
        process.kill()
        process.join()
        list(run(double, [1]))


def test_a_system_that_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", refuse)
    with pytest.raises(ProcessError, match="cannot be started: Resource temporarily"), running(2) as run:
        list(run(double, [1]))
