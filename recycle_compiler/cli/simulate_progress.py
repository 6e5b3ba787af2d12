"""How far a simulation is: one line on a terminal, rewritten in place; it leaves nothing behind.

simulating gpt3  ━━━━━━━━──────────────  oobleck  12 s
"""

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from recycle_compiler.cli.progress import time_words

_BAR = 24
_SECONDS_BETWEEN = 0.2


class Meter:
    """Counts changes over all policies; silent unless shown."""

    def __init__(
        self, title: str, total: int, shown: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title, self._total, self._shown, self._clock = title, max(1, total), shown, clock
        self._began = self._drawn_at = clock()
        self._done = 0
        self._policy = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("")

    def begin(self, policy: str) -> None:
        """This policy is next."""
        self._policy = policy
        self._draw()

    def advance(self) -> None:
        """One change more."""
        self._done += 1
        if self._shown and self._clock() - self._drawn_at >= _SECONDS_BETWEEN:
            self._draw()

    def line(self) -> str:
        fancy = (sys.stderr.encoding or "").lower().startswith("utf")
        full = min(_BAR, _BAR * self._done // self._total)
        signs = "━─" if fancy else "=-"
        bar = signs[0] * full + signs[1] * (_BAR - full)
        return f"{self._title}  {bar}  {self._policy}  {time_words(self._clock() - self._began)}"

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        self._write(self.line())

    def _write(self, line: str) -> None:
        if not self._shown:
            return
        try:
            sys.stderr.write(f"\r{line}\x1b[K" if line else "\r\x1b[K")
            sys.stderr.flush()
        except (OSError, ValueError):
            self._shown = False
