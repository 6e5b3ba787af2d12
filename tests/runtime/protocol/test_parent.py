"""Processes that get a signal when the one that started them ends: with real ones."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from recycle_runtime.protocol import parent
from recycle_runtime.protocol.lifeline import FROM_PARENT, Lifeline, is_held
from recycle_runtime.protocol.parent import die_with_parent, end_with_parent
from tests.runtime.protocol.children import child


class Family:
    """A parent and its child, which says that it is ready and then does as it is told."""

    def __init__(self, then: Callable[[], None]) -> None:
        told, tell = os.pipe()

        def grandchild(its_parent: int) -> None:
            die_with_parent(its_parent)
            os.write(tell, os.getpid().to_bytes(4, "little"))
            then()

        def life() -> None:
            own = os.getpid()
            child(lambda: grandchild(own))
            time.sleep(600)

        self.first = child(life)
        self._second = os.pidfd_open(int.from_bytes(os.read(told, 4), "little"))
        for descriptor in (told, tell):
            os.close(descriptor)

    def second_lives(self) -> bool:
        try:
            signal.pidfd_send_signal(self._second, 0)
        except ProcessLookupError:
            return False
        return True

    def end_first(self) -> None:
        os.kill(self.first, signal.SIGKILL)
        os.waitpid(self.first, 0)

    def until_second_is_gone(self) -> None:
        while self.second_lives():
            time.sleep(0.01)
        os.close(self._second)


def refused(number: signal.Signals) -> bool:
    return False


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).sleep(600)


@pytest.mark.parametrize("then", [lambda: time.sleep(600), hold_the_interpreter])
def test_the_child_ends_with_its_parent(then: Callable[[], None]) -> None:
    family = Family(then)
    assert family.second_lives()
    family.end_first()
    family.until_second_is_gone()


def test_where_the_kernel_does_not_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "_LOOK_EVERY", 0.01)
    monkeypatch.setattr(parent, "_ask_kernel", refused)
    family = Family(lambda: time.sleep(600))
    assert family.second_lives()
    family.end_first()
    family.until_second_is_gone()


def test_a_parent_that_has_ended_before() -> None:
    gone = child(lambda: None)
    os.waitpid(gone, 0)
    late = child(lambda: die_with_parent(gone))
    assert os.waitstatus_to_exitcode(os.waitpid(late, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("asks_kernel", [True, False])
def test_another_thread_of_the_parent_may_end(asks_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is asked to end when the last of them has, and once."""
    if not asks_kernel:
        monkeypatch.setattr(parent, "_LOOK_EVERY", 0.01)
        monkeypatch.setattr(parent, "_ask_kernel", refused)
    heard, say = os.pipe()
    told, tell = os.pipe()

    def note(number: int, frame: object) -> None:
        os.write(say, b"T")

    def grandchild(ready: int) -> None:
        signal.signal(signal.SIGTERM, note)
        end_with_parent(signal.SIGTERM)
        os.write(ready, os.getpid().to_bytes(4, "little"))
        while True:
            signal.pause()

    def start(found: list[bytes]) -> None:
        is_ready, ready = os.pipe()
        child(lambda: grandchild(ready))
        found.append(os.read(is_ready, 4))

    def life() -> None:
        found: list[bytes] = []
        starting = threading.Thread(target=start, args=(found,))
        starting.start()
        starting.join()
        # For the kernel it ends a little later than for Python.
        while len(os.listdir("/proc/self/task")) > 1:
            time.sleep(0.01)
        os.write(tell, found[0])
        time.sleep(600)

    first = child(life)
    second = os.pidfd_open(int.from_bytes(os.read(told, 4), "little"))
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert os.read(heard, 1) == b"T"
    signal.pidfd_send_signal(second, signal.SIGKILL)
    os.close(say)
    assert os.read(heard, 100) == b""
    for descriptor in (heard, told, tell, second):
        os.close(descriptor)


def test_a_system_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str | None) -> object:
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert not parent._ask_kernel(signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert not parent._ask_kernel(signal.SIGKILL)  # pyright: ignore[reportPrivateUsage]


def test_a_process_with_a_lifeline_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    lifeline = Lifeline()
    monkeypatch.delenv(FROM_PARENT, raising=False)
    assert not is_held()
    monkeypatch.setenv(FROM_PARENT, lifeline.environment[FROM_PARENT])
    assert is_held()
    lifeline.cut()
    assert not is_held()
