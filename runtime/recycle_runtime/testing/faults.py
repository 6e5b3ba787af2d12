"""Harm that a worker process does to itself when it is told to, to see what becomes of the others."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from recycle_runtime.protocol.messages import InjectedFault as Fault
from recycle_runtime.testing.timetable import MOMENTS
from recycle_runtime.transport.sockets import break_off_everything


class InjectedError(Exception):
    """Raised where an exception was asked for."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _terminate() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _raise() -> None:
    raise InjectedError("a fault that was asked for")


def _exit() -> None:
    os._exit(7)


def _hold_the_interpreter() -> None:
    """No other thread of this process runs Python while this call lasts."""
    ctypes.PyDLL(None).sleep(3600)


def _hang() -> None:
    """Other threads go on, this one does not."""
    time.sleep(3600)


class Pace:
    """How many times longer than they need to the ops of this process take."""

    factor = 1.0


PACE = Pace()
SLOW = 3.0


def _slow_down() -> None:
    """From now on, whatever the process computes takes longer; it goes on as if nothing was."""
    PACE.factor = SLOW


class Ears:
    """Whether the connections break in the next wait for others, and this process is not told."""

    are_deaf = False


EARS = Ears()


def _go_deaf() -> None:
    """As gloo is when a socket breaks in the middle of a message."""
    EARS.are_deaf = True


def _close_sockets() -> None:
    """Every connection breaks, that to the coordinator too, as when a cable is pulled for a moment."""
    break_off_everything()


KINDS: Mapping[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "term": _terminate,
    "exception": _raise,
    "exit": _exit,
    "gil": _hold_the_interpreter,
    "hang": _hang,
    "socket": _close_sockets,
    "slow": _slow_down,
    "deaf": _go_deaf,
}


UNSEEN = ("slow", "deaf")
"""Kinds of harm after which the process goes on as if nothing was."""


class Harm:
    """The faults that a process has been given and that have not happened yet."""

    def __init__(self, faults: Sequence[Fault], before: Callable[[Fault], None]) -> None:
        self._faults, self._before = list(faults), before
        """Called before one happens, which may be the last thing that this process does."""

    def in_step(
        self, step: int, length: int, *, is_spared: bool = False, is_learning: bool = False
    ) -> dict[int, Fault]:
        """Faults of a step whose stream is so long, by position; those that are overdue among them.

        One worker of every stage is spared from faults that may wait. Those that may not wait for that are
        meant for a worker that works, and wait for it to have caught up.
        """
        outside = MOMENTS.values()
        return {
            fault.position if 0 <= fault.position < length else length // 2: fault
            for fault in reversed(self._faults)
            if fault.step <= step
            and fault.position not in outside
            and not (is_spared if fault.kind.endswith("?") else is_learning)
        }

    def at(self, moment: str, step: int) -> None:
        """Somewhere outside the stream."""
        for fault in list(self._faults):
            if fault.position == MOMENTS[moment] and fault.step <= step:
                self.happen(fault)

    def happen(self, fault: Fault) -> None:
        self._faults.remove(fault)
        self._before(fault)
        KINDS[fault.kind.removesuffix("?")]()
