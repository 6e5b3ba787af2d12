"""Tasks side by side in processes of their own, or one after another in this one."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Apply a function to each task; results come as they are done, in any order."""


@contextmanager
def running(processes: int) -> Generator[Run]:
    """How to run tasks while the context is open. Functions and tasks must be ones that pickle."""
    if processes == 1:
        yield map
        return
    # Spawned, not forked: the parent may draw a progress bar in a thread.
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _depend_on_parent)

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        for done in as_completed([pool.submit(function, task) for task in tasks]):
            yield done.result()

    try:
        yield run
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _depend_on_parent() -> None:
    """In a worker: signals from a terminal are for the parent, which stops us; when it is gone, so are we."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
