"""One progress bar on stderr, drawn by rich; it is gone when it is left."""

import io
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

_WIDTH = 24
_REFRESH_PER_SECOND = 2


class ProgressBar:
    """A title, a bar, some words, the time so far and, where it can be estimated, the time left."""

    def __init__(
        self,
        title: str,
        total: int,
        words: str,
        color: bool,
        seconds_left: Callable[[float], float | None] = lambda now: None,
    ) -> None:
        console = Console(file=cast(TextIO, _Terminal(sys.stderr)), force_terminal=True, no_color=not color)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True), markup=False),
            BarColumn(_WIDTH),
            TextColumn("{task.fields[words]}", table_column=Column(no_wrap=True), markup=False),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            _TimeLeft(seconds_left),
            console=console,
            auto_refresh=_has_threads(),
            refresh_per_second=_REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task(title, total=total, words=words)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """One more is done; drawn with the next refresh."""
        self._progress.advance(self._task)

    def describe(self, words: str) -> None:
        """Draw other words behind the bar, now."""
        self._progress.update(self._task, words=words, refresh=True)

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._progress.tasks[0].elapsed or 0.0


class _TimeLeft(ProgressColumn):
    def __init__(self, seconds_left: Callable[[float], float | None]) -> None:
        super().__init__(Column(no_wrap=True))
        self._seconds_left = seconds_left

    def render(self, task: Task) -> Text:
        left = self._seconds_left(task.elapsed or 0.0)
        return Text("" if left is None else f"about {timedelta(seconds=int(left))} left")


class _Terminal(io.TextIOBase):
    """A terminal that may go away: what cannot be written to it is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._stream.encoding or "ascii"

    def write(self, s: str, /) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(s)
        return len(s)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _has_threads() -> bool:
    """True if a thread can be started; without one, the bar changes with every step and not in between."""
    try:
        threading.Thread(target=lambda: None).start()
    except RuntimeError:
        return False
    return True
