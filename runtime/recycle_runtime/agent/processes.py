"""Processes of an agent, started, watched and killed through the kernel. No torch."""

import os
import selectors
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from recycle_runtime.agent.process_signs import Signs, ending, signs_of
from recycle_runtime.protocol.messages.members import Member


class Readable(Protocol):
    def fileno(self) -> int: ...


class Processes(Protocol):
    """Of one node. A descriptor stands for a process, and can be read when that has ended."""

    def start(self, work: Callable[[], None], member: Member, line: int) -> int:
        """A process that does this and ends, as this worker with this line of the board; its pid."""
        ...

    def open(self, pid: int) -> int:
        """A descriptor; ProcessLookupError if there is no such process."""
        ...

    def signal(self, descriptor: int, number: signal.Signals) -> None: ...

    def close(self, descriptor: int) -> None: ...

    def how(self, pid: int) -> str:
        """In what way a process has ended, in words."""
        ...

    def reap(self, pid: int) -> None: ...

    def signs(self, pid: int) -> Signs | None:
        """Signs of life that the kernel has for a process; None when it is gone."""
        ...

    def is_ours(self, pid: int) -> bool:
        """True if a process is a worker of this job and no other that has got its number since."""
        ...

    async def ready(
        self, line: Readable, descriptors: Iterable[int], seconds: float, relay: Readable | None = None
    ) -> set[int]:
        """Wait at most so long; what can be read."""
        ...


class KernelProcesses:
    """The real ones."""

    def start(self, work: Callable[[], None], member: Member, line: int) -> int:
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(1)
        return pid

    def open(self, pid: int) -> int:
        return os.pidfd_open(pid)

    def signal(self, descriptor: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def how(self, pid: int) -> str:
        try:
            _, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return "ended"
        return ending(status)

    def reap(self, pid: int) -> None:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def signs(self, pid: int) -> Signs | None:
        return signs_of(pid)

    def is_ours(self, pid: int) -> bool:
        try:
            started = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return started == Path("/proc/self/cmdline").read_bytes()

    async def ready(
        self, line: Readable, descriptors: Iterable[int], seconds: float, relay: Readable | None = None
    ) -> set[int]:
        with selectors.DefaultSelector() as selector:
            selector.register(line, selectors.EVENT_READ)
            if relay is not None:
                selector.register(relay, selectors.EVENT_READ)
            for descriptor in descriptors:
                selector.register(descriptor, selectors.EVENT_READ)
            return {key.fd for key, _ in selector.select(seconds)}
