"""Processes that load data: the workers of a DataLoader, which get the numbers of micro-batches."""

import os
import stat
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from recycle_runtime.data.ahead import Get, Raised
from recycle_runtime.data.private_random import item_seed, seed_process
from recycle_runtime.program.errors import ProgramError, line_of, place


@dataclass(frozen=True, slots=True)
class LoadingProcesses:
    """Options of a DataLoader about its workers."""

    count: int
    prefetch_factor: int | None = None
    """Micro-batches that each process may be ahead."""
    context: Any = None
    """Multiprocessing context that starts them; by default they are forked."""
    begin: Callable[[int], None] | None = None
    """Called in each of them with its number (`worker_init_fn`)."""
    timeout: float = 0.0


class ProcessBackstage:
    """Draws in processes, each item with random numbers of its own; see `ahead.Backstage`."""

    def __init__(
        self, get: Get, seed: int, options: LoadingProcesses, path: Path, called: Callable[[int], str]
    ) -> None:
        self._called = called
        self._numbers = _Numbers()
        self._loader: DataLoader[Any] = DataLoader(
            _ByNumber(get, seed, path),
            batch_size=None,
            sampler=self._numbers,
            num_workers=options.count,
            prefetch_factor=options.prefetch_factor,
            multiprocessing_context=options.context or "fork",
            worker_init_fn=_Begin(options.begin),
            timeout=options.timeout,
            persistent_workers=True,
            # It draws a number each time it begins, in a thread: not one of the model's.
            generator=torch.Generator(),
        )

    def draw(self, numbers: Iterator[int]) -> Iterable[tuple[int, Any]]:
        self._numbers.now = numbers
        for number, drawn in self._loader:
            yield number, Raised(drawn.error(self._called(number))) if isinstance(drawn, _Told) else drawn

    def close(self) -> None:
        """They end when nothing refers to them."""
        self._loader = cast(Any, ())


class _Told:
    """Error of the user's code in another process."""

    def __init__(self, path: Path, error: BaseException) -> None:
        self._where = place(path, line_of(path, error))
        words = " ".join(str(error).split())
        self._words = f"{type(error).__name__}: {words}" if words else type(error).__name__
        self._traceback = "".join(traceback.format_exception(error))

    def error(self, doing: str) -> ProgramError:
        made = ProgramError(f"{self._where}: {doing}: {self._words}")
        made.add_note(self._traceback)
        return made


class _Numbers(Sampler[int]):
    """Those that are wanted now."""

    def __init__(self) -> None:
        self.now: Iterator[int] = iter(())

    def __iter__(self) -> Iterator[int]:
        return self.now


class _ByNumber(Dataset[Any]):
    """Share of the user's data in each process."""

    def __init__(self, get: Get, seed: int, path: Path) -> None:
        self._get, self._seed, self._path = get, seed, path

    def __getitem__(self, number: int) -> tuple[int, Any]:
        seed_process(item_seed(self._seed, number))
        try:
            return number, self._get(number)
        except Exception as error:
            return number, _Told(self._path, error)


class _Begin:
    """The first thing in each process."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        _let_go_of_sockets()
        sys.excepthook = _tell_unless_alone
        if self._then is not None:
            self._then(number)


def _tell_unless_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A worker may fail while the thread of `multiprocessing` hands it a micro-batch: that is no news."""
    if not isinstance(error, ConnectionError | EOFError):
        sys.__excepthook__(kind, error, trace)


def _let_go_of_sockets() -> None:
    """A forked process has the connections of its parent, and would keep them open when that is killed.

    Their numbers stay taken: objects that were copied along may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.dup2(nothing, int(name))
        except OSError:
            # The folder itself was open while it was read.
            continue
    os.close(nothing)
