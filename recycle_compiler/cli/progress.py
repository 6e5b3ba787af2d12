"""How far planning is: one line on a terminal, rewritten in place; it leaves nothing behind.

    planning gpt3  ━━━━━━━━──────────────  3/7 plans  gap 1.4 %, worst 2.8 %  12 s, about 16 s left

Nothing here may stop the planning: a terminal that cannot be written to is left alone.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TextIO

from recycle_compiler.ir.units import percent, plural

_BAR = 24
_FULL, _EMPTY = "━", "─"
_PLAIN_FULL, _PLAIN_EMPTY = "=", "-"
_SECONDS_BETWEEN = 0.5
_NO_REWRITING = ("", "dumb", "unknown")
"""What TERM says where a line cannot be written again."""


def can_rewrite(stream: TextIO) -> bool:
    """Whether a line on this stream can be taken back."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in _NO_REWRITING
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class State:
    """What is known so far; times in seconds since the beginning."""

    total: int
    done: int = 0
    last_gap: float = 0.0
    worst_gap: float = 0.0
    last_at: float = 0.0
    """When the last plan was ready."""

    def after(self, gap: float, now: float) -> "State":
        """One plan more."""
        return replace(
            self, done=self.done + 1, last_gap=gap, worst_gap=max(gap, self.worst_gap), last_at=now
        )

    def seconds_left(self, now: float) -> float | None:
        """If the other plans take as long as those that are done; None where nothing can be said."""
        if self.done == 0:
            return None
        return max(0.0, self.last_at * self.total / self.done - now)


class PlanProgress:
    """Counts plans as they are made; silent unless shown."""

    def __init__(
        self, title: str, total: int, shown: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._shown = shown
        self._clock = clock
        self._began = clock()
        self._state = State(total)
        self._drawn = ""
        self._drawing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._draw()
            # Where no thread can be had, the line changes with every plan and not in between.
            with suppress(RuntimeError):
                self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._write("")

    def update(self, gap: float) -> None:
        """One plan more is ready, this far above its bound."""
        self._state = self._state.after(gap, self._clock() - self._began)
        self._draw()

    def _keep_drawing(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN):
            self._draw()

    def _draw(self) -> None:
        if self._shown:
            fancy = (sys.stderr.encoding or "").lower().startswith("utf")
            now = self._clock() - self._began
            self._write(progress_line(self._title, self._state, now, _columns(sys.stderr), fancy))

    def _write(self, line: str) -> None:
        """Put this line in place of what was drawn last."""
        with self._drawing:
            if not self._shown or line == self._drawn:
                return
            try:
                sys.stderr.write(f"\r{line}\x1b[K" if line else "\r\x1b[K")
                sys.stderr.flush()
            except (OSError, ValueError):
                self._shown = False
            self._drawn = line


def progress_line(title: str, state: State, now: float, columns: int, fancy: bool = True) -> str:
    """As much as fits into these columns, the last of which stays free."""
    counts = f"{state.done}/{plural(state.total, 'plan')}"
    gaps = f"gap {percent(state.last_gap)}, worst {percent(state.worst_gap)}" if state.done else ""
    left = state.seconds_left(now)
    times = time_words(now) + ("" if left is None else f", about {time_words(left)} left")
    bar = _bar(state, fancy)
    choices = (
        (title, bar, counts, gaps, times),
        (title, counts, gaps, times),
        (counts, gaps, times),
        (counts, times),
    )
    lines = ["  ".join(part for part in parts if part) for parts in choices]
    return next((line for line in lines if len(line) < columns), counts[: max(0, columns - 1)])


def time_words(seconds: float) -> str:
    """`7 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _bar(state: State, fancy: bool) -> str:
    full = _BAR * state.done // max(1, state.total)
    signs = (_FULL, _EMPTY) if fancy else (_PLAIN_FULL, _PLAIN_EMPTY)
    return signs[0] * full + signs[1] * (_BAR - full)


def _columns(stream: TextIO) -> int:
    """Of the terminal itself; of the environment where the terminal does not know."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size((80, 24)).columns
