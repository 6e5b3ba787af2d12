"""A process of a job that is started again when it dies. Standard library only.

It is started again up to five times. The sixth death is an error, which ends `recycle-run local` or the node.
One restart is forgotten for every 120 s from one death to the next, so that a process which dies now and then
is always started again. Only deaths by a signal count: a process that exits by itself has said why, and is
not started again.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from subprocess import DEVNULL, Popen, TimeoutExpired

from recycle_runtime import logs
from recycle_runtime.protocol.lifeline import Lifeline

_MOST_RESTARTS = 5
"""Restarts that count; the next death is the last."""
_FORGOTTEN_AFTER = 120.0
"""Seconds from one death to the next for each restart that counts no more."""
_TERM_SECONDS = 5.0
PASSED_ON = {signal.SIGTERM: signal.SIGUSR1, signal.SIGHUP: signal.SIGUSR2}
"""By which signals a process hears from its parent of signals that it does not hear itself."""


class SupervisorError(RuntimeError):
    """The job cannot be kept going."""


class KeptProcess:
    """A process that is started again when it dies."""

    def __init__(
        self,
        name: str,
        command: Callable[[], list[str]],
        environment: dict[str, str],
        lifeline: Lifeline,
        *,
        has_terminal: bool = False,
        keeps: tuple[int, ...] = (),
        ignores: tuple[int, ...] = (),
    ) -> None:
        """`keeps` are descriptors that each of these processes gets, `ignores` signals that none hears."""
        self.name, self._command, self._environment = name, command, environment
        self._lifeline, self._has_terminal, self._keeps = lifeline, has_terminal, keeps
        self._ignores = ignores
        self.restarts = 0
        """But for those of long ago."""
        self._restarted = time.monotonic()
        self.process = self._start()

    def look(self) -> int | None:
        """Its exit status if it has ended by itself; a death by signal is mended.

        SupervisorError at the sixth death by signal.
        """
        status = self.process.poll()
        if status is None or status >= 0:
            return status
        now = time.monotonic()
        self.restarts = max(0, self.restarts - int((now - self._restarted) / _FORGOTTEN_AFTER)) + 1
        self._restarted = now
        if self.restarts > _MOST_RESTARTS:
            raise SupervisorError(
                f"the {self.name} has died {self.restarts} times, last by signal {-status}, and is not "
                f"started again: {_MOST_RESTARTS} restarts are allowed, and one is forgotten every "
                f"{_FORGOTTEN_AFTER:g} s"
            )
        self.process = self._start()
        return None

    def end(self, seconds: float) -> None:
        """It may end by itself for so long; then it is asked to, and then made to."""
        for insist in (lambda: None, self.process.terminate, self.process.kill):
            insist()
            try:
                self.process.wait(seconds)
                return
            except TimeoutExpired:
                seconds = _TERM_SECONDS
        self.process.wait()

    def pass_on(self, number: int) -> None:
        """That this signal asks for an end, to the process alone; it may ignore the signal itself."""
        ignored = {each: PASSED_ON[each] for each in PASSED_ON if each in self._ignores}
        self.process.send_signal(ignored.get(signal.Signals(number), number))

    def signal(self, number: signal.Signals) -> None:
        """To it and to all processes that it has started."""
        # In the foreground it is in our group, which the terminal has told already.
        if not self._has_terminal:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def _start(self) -> Popen[bytes]:
        return Popen(
            [sys.executable, "-m", "recycle_runtime.cli", *logs.settings().options(), *self._command()],
            env=os.environ | self._environment | self._lifeline.environment,
            stdin=None if self._has_terminal else DEVNULL,
            pass_fds=[self._lifeline.reader, *self._keeps],
            # Only the group in the foreground can read from a terminal.
            preexec_fn=None if self._has_terminal else partial(stand_apart, self._ignores),
        )


def stand_apart(ignores: tuple[int, ...]) -> None:
    """In a new process: a group of its own, which may write to the terminal from the background."""
    os.setpgid(0, 0)
    # A shell has whatever it starts in the background ignore it; to this process it is how its parent asks
    # for an end.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in (signal.SIGTTOU, *ignores):
        signal.signal(number, signal.SIG_IGN)
