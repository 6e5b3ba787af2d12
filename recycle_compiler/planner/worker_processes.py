"""Tasks side by side in processes of their own, or one after another in this one.

Every process has a pipe of its own. When one is killed its end closes, whatever it was doing, so that nothing
waits for it and its exit code says what happened.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

from recycle_runtime import logs

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Apply a function to each task; results come as they are done, in any order."""

_Pipe: TypeAlias = "Connection[Any, Any]"
# Spawned, not forked: the parent may draw its progress in a thread.
_SPAWN = multiprocessing.get_context("spawn")
_NO_TASK = object()
_OWN_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class ProcessError(Exception):
    """A process could not be started, or ended before its task was done."""

    def __init__(self, what: str, crashed: bool = False) -> None:
        super().__init__(what)
        self.crashed = crashed
        """True if code of ours, or of a library, crashed; otherwise it was ended from outside."""


@contextmanager
def running(processes: int) -> Generator[Run]:
    """Function that runs tasks while the context is open. Functions and tasks must be ones that pickle."""
    if processes == 1:
        yield map
        return
    pool = _Pool(processes)
    try:
        yield pool.run
    finally:
        pool.close()


class _Pool:
    """Processes that wait for tasks; they are started when there is a task for them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._processes: dict[_Pipe, SpawnProcess] = {}

    def run(self, function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """The results, to be taken to the last one before the next tasks are given.

        A task is asked for when there is a process for it, not sooner.
        """
        waiting = iter(tasks)
        idle = list(self._processes)
        busy: list[_Pipe] = []
        while True:
            while idle or len(self._processes) < self._most:
                task = next(waiting, _NO_TASK)
                if task is _NO_TASK:
                    break
                pipe = idle.pop() if idle else self._start()
                self._give(pipe, (function, task))
                busy.append(pipe)
            if not busy:
                return
            ready = wait(busy)
            for pipe in [each for each in busy if each in ready]:
                busy.remove(pipe)
                idle.append(pipe)
                yield self._take(pipe)

    def close(self) -> None:
        """End every process, busy or not: what they leave half done is in memory only."""
        for process in self._processes.values():
            process.kill()
        for pipe, process in self._processes.items():
            process.join()
            pipe.close()

    def _start(self) -> _Pipe:
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(theirs, logs.settings()), daemon=True)
        try:
            process.start()
        except OSError as error:
            raise ProcessError(f"another process cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._processes[ours] = process
        return ours

    def _give(self, pipe: _Pipe, task: tuple[Callable[[Any], Any], Any]) -> None:
        try:
            pipe.send(task)
        except OSError as error:
            raise self._ended(pipe) from error

    def _take(self, pipe: _Pipe) -> Any:
        try:
            result, error, trace = pipe.recv()
        except (EOFError, OSError) as closed:
            raise self._ended(pipe) from closed
        if error is not None:
            error.add_note(f"in a process of its own:\n{trace}")
            raise error
        return result

    def _ended(self, pipe: _Pipe) -> ProcessError:
        process = self._processes[pipe]
        process.join()
        code = process.exitcode or 0
        if code >= 0:
            return ProcessError(f"a planning process ended with exit code {code}", crashed=True)
        return ProcessError(f"a planning process was ended by {_signal_name(-code)}", -code in _OWN_CRASHES)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _serve(pipe: _Pipe, settings: logs.LogSettings) -> None:
    """In a process of its own: do what comes through the pipe until it closes."""
    # A lock that some library makes has no name then, and nothing of it stays when we are killed.
    multiprocessing.set_start_method("fork", force=True)
    _depend_on_parent()
    logs.configure(settings.level, settings.file)
    while True:
        try:
            function, task = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(task), None, ""))
        except Exception as error:
            pipe.send((None, error, traceback.format_exc()))


def _depend_on_parent() -> None:
    """Leave signals from a terminal to the parent, and end when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
