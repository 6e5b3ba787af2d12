"""A thread that waits for disks, so that the coordinator does not. Needs no torch."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol


class FileThread(Protocol):
    """Does one thing after the other, so that nobody waits for a disk."""

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]: ...

    def wait(self, future: Future[None], seconds: float) -> None: ...

    def close(self) -> None: ...


class RealFileThread:
    """A thread."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, work: Callable[..., None], *arguments: Any) -> Future[None]:
        return self._executor.submit(work, *arguments)

    def wait(self, future: Future[None], seconds: float) -> None:
        wait([future], seconds)

    def close(self) -> None:
        self._executor.shutdown(wait=False)
