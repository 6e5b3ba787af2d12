"""Faults that a worker process injects into itself, to test how the other workers recover."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from recycle_runtime.execution.hooks import FaultReporter, Hooks, Moment
from recycle_runtime.protocol.messages.members import InjectedFault
from recycle_runtime.testing.timetable import MOMENTS
from recycle_runtime.transport.sockets import break_off_everything

SLOWDOWN = 3.0
_UNSEEN = ("slow", "half-open")
"""After these the process goes on as if nothing had happened."""


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
    raise InjectedError("an injected fault")


def _exit() -> None:
    os._exit(7)


def _hold_the_interpreter() -> None:
    """No other thread of this process runs Python while this call lasts."""
    ctypes.PyDLL(None).sleep(3600)


def _hang() -> None:
    """Other threads go on, this one does not."""
    time.sleep(3600)


def _close_sockets() -> None:
    """Every connection breaks, that to the coordinator too, as when a cable is pulled for a moment."""
    break_off_everything()


_ACTIONS: Mapping[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "term": _terminate,
    "exception": _raise,
    "exit": _exit,
    "gil": _hold_the_interpreter,
    "hang": _hang,
    "socket": _close_sockets,
}

KINDS = (*_ACTIONS, *_UNSEEN)


class InjectedFaults(Hooks):
    """The faults that a process has been given and that have not happened yet."""

    def __init__(self, faults: Sequence[InjectedFault]) -> None:
        self._faults = list(faults)
        self._reporter: FaultReporter | None = None
        self.armed: dict[int, InjectedFault] = {}
        """Of the step that runs now, by position."""
        self._is_half_open = False
        """True if the connections break in the next wait for other workers, unknown to this process."""

    def attach(self, reporter: FaultReporter) -> None:
        self._reporter = reporter

    def begin_step(self, step: int, length: int, *, is_spared: bool, is_joining: bool) -> None:
        """Arm the faults of this step; those that are overdue among them.

        One worker of every stage is spared from faults that may wait. Those that may not wait for that are
        meant for a worker that works, and wait for it to have caught up.
        """
        outside = MOMENTS.values()
        self.armed = {
            fault.position if 0 <= fault.position < length else length // 2: fault
            for fault in reversed(self._faults)
            if fault.step <= step
            and fault.position not in outside
            and not (is_spared if fault.kind.endswith("?") else is_joining)
        }

    def before_instruction(self, position: int) -> None:
        if position in self.armed:
            self._inject(self.armed.pop(position))

    def at(self, moment: Moment, step: int) -> None:
        for fault in list(self._faults):
            if fault.position == MOMENTS[moment] and fault.step <= step:
                self._inject(fault)

    def before_wait(self) -> None:
        """As gloo is when a socket breaks in the middle of a message: this thread is never woken."""
        if self._is_half_open:
            self._is_half_open = False
            break_off_everything()
            while True:
                time.sleep(3600.0)

    def caused(self, error: BaseException) -> bool:
        return InjectedError in (type(error), type(error.__cause__))

    def _inject(self, fault: InjectedFault) -> None:
        self._faults.remove(fault)
        kind = fault.kind.removesuffix("?")
        if self._reporter is not None:
            self._reporter.fault_is_next(fault, goes_on=kind in _UNSEEN)
        if kind == "slow":
            self.slowdown = SLOWDOWN
        elif kind == "half-open":
            self._is_half_open = True
        else:
            _ACTIONS[kind]()
