"""Processes of `recycle-run` that are forked from one that has loaded torch, in place of started ones.

Loading torch takes seconds of a core for every job that a test runs. A process apart loads what an agent
loads before it forks its workers, and has one thread, as that has: what tests leave behind in their own
process is not in it. A fork has the command line, the environment, the folder and the descriptors that were
asked for. The forking process ends with the one that started it.
"""

import atexit
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from recycle_runtime.agent.preload import preload
from recycle_runtime.launcher.kept_process import stand_apart

_MODULE = "recycle_runtime.cli"
_ROOM = 16_384
"""Bytes for the command line of a fork, by which others know it."""
_MOST_BYTES = 1 << 17
_MOST_DESCRIPTORS = 16
_ASIDE = 512
"""Descriptors from here on are in nobody's way."""
_SECONDS = 600.0
"""For torch to be loaded on a busy machine."""


class WarmProcess:
    """As much of `subprocess.Popen` as `KeptProcess` uses."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int | None,
        pass_fds: Sequence[int],
        preexec_fn: "partial[None] | None",
    ) -> None:
        assert list(args[1:3]) == ["-m", _MODULE] and stdin == subprocess.DEVNULL and preexec_fn is not None
        (ignores,) = preexec_fn.args
        self.args, self.returncode = args, None
        self.returncode: int | None
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            said = json.dumps([args, dict(env), str(Path.cwd()), list(ignores), list(pass_fds)])
            socket.send_fds(_server(), [said.encode()], [far.fileno(), 1, 2, *pass_fds])
        self._control.settimeout(_SECONDS)
        answer, (self._handle,), _, _ = socket.recv_fds(self._control, _MOST_BYTES, 1)
        self.pid = int(answer)

    def poll(self) -> int | None:
        return self._status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._handle)
        self._control.close()

    def _status(self, seconds: float | None) -> int | None:
        if self.returncode is None and _readable([self._control.fileno()], seconds):
            self.returncode = int(self._control.recv(_MOST_BYTES))
        return self.returncode


def _readable(descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
    """Those that can be read; `select` does not know any above 1023."""
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    return [found for found, _ in poll.poll(None if seconds is None else seconds * 1000)]


@cache
def _server() -> socket.socket:
    """The connection to the forking process."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(far.fileno()), " " * _ROOM],
            stdin=subprocess.DEVNULL,
            pass_fds=[far.fileno()],
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(near.close)
    return near


def _serve(requests: socket.socket) -> None:
    """Until the tests end. What has been forked goes on as long as its job does."""
    controls: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for readable in _readable([requests.fileno(), *controls]):
            if readable in controls:
                pid, control = controls.pop(readable)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(readable)
                with control, suppress(OSError):
                    # Nobody may be there any more who wants to know.
                    control.send(str(status).encode())
                continue
            said, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, _MOST_DESCRIPTORS)
            if not said:
                return
            pid = os.fork()
            if pid == 0:
                requests.close()
                for handle, (_, control) in controls.items():
                    os.close(handle)
                    control.close()
                return _become(*json.loads(said), descriptors=descriptors)
            control, *copies = descriptors
            handle = os.pidfd_open(pid)
            controls[handle] = pid, socket.socket(fileno=control)
            socket.send_fds(controls[handle][1], [str(pid).encode()], [handle])
            for each in copies:
                os.close(each)


def _become(
    words: list[str],
    environment: dict[str, str],
    folder: str,
    ignores: list[int],
    keeps: list[int],
    descriptors: list[int],
) -> None:
    """As the command line would, and end as that does."""
    aside = [fcntl(each, F_DUPFD_CLOEXEC, _ASIDE) for each in descriptors[1:]]
    for each in descriptors:
        os.close(each)
    for number, each in zip([1, 2, *keeps], aside, strict=True):
        os.dup2(each, number)
        os.close(each)
    stand_apart(tuple(ignores))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    sys.argv = words[2:]
    _show("\0".join(words))
    runpy.run_module(_MODULE, run_name="__main__", alter_sys=True)


def _show(words: str) -> None:
    """As the command line of this process, from now on."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    told = os.fsencode(words)
    assert len(told) < end - start
    ctypes.memmove(start, told.ljust(end - start, b"\0"), end - start)


def _load() -> None:
    """Whatever a coordinator or an agent does."""
    for name in ("cli.commands.coordinator", "cli.commands.agent", "trainer.program_file", "trainer.script"):
        import_module(f"recycle_runtime.{name}")
    preload(checkpoints=True)


if __name__ == "__main__":
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
