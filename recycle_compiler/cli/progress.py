"""Progress bars on a terminal; they leave nothing behind, and nothing is drawn where stderr is no terminal.

    planning gpt3    ━━━━━━━━━╺━━━━━━━━━━━━━━  3/7 plans  gap 1.4 %, worst 2.8 %  0:00:12  about 0:00:16 left
    simulating gpt3  ━━━━━━━━━━━━━━━╺━━━━━━━━  oobleck  0:00:12

Nothing here may stop the work: a terminal that cannot be written to is left alone. Rich is imported only if a
bar is drawn.
"""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TextIO

from recycle_compiler.ir.units import percent, plural
from recycle_runtime.cli.output import Output

_NO_REWRITING = ("", "dumb", "unknown")
"""Values of TERM with which a line cannot be rewritten."""


def is_shown(output: Output) -> bool:
    """True if there is a terminal to draw on, and the user wants to see it."""
    return not output.quiet and can_rewrite(sys.stderr)


def can_rewrite(stream: TextIO) -> bool:
    """True if a line on this stream can be taken back."""
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in _NO_REWRITING
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Plans:
    """Progress of the plans so far; times in seconds since the beginning."""

    total: int
    done: int = 0
    last_gap: float = 0.0
    worst_gap: float = 0.0
    last_at: float = 0.0
    """Time at which the last plan was ready."""

    def after(self, gap: float, now: float) -> "Plans":
        """One plan more."""
        return replace(
            self, done=self.done + 1, last_gap=gap, worst_gap=max(gap, self.worst_gap), last_at=now
        )

    def seconds_left(self, now: float) -> float | None:
        """If the other plans take as long as those that are done; None where nothing can be said."""
        if self.done == 0:
            return None
        return max(0.0, self.last_at * self.total / self.done - now)

    def words(self) -> str:
        counts = f"{self.done}/{plural(self.total, 'plan')}"
        gaps = f"  gap {percent(self.last_gap)}, worst {percent(self.worst_gap)}" if self.done else ""
        return counts + gaps


class Meter(Protocol):
    """Counts the changes that a simulation has gone through, over all policies."""

    @property
    def begin(self) -> Callable[[str], None]: ...

    @property
    def advance(self) -> Callable[[], None]: ...


@contextmanager
def plan_progress(title: str, total: int, output: Output, shown: bool) -> Generator[Callable[[float], None]]:
    """Draw how many plans are done; call what this gives with the gap of each."""
    if not shown:
        yield lambda gap: None
        return
    from recycle_compiler.cli.progress_bar import ProgressBar

    plans = Plans(total)
    with ProgressBar(title, total, plans.words(), output.color, lambda now: plans.seconds_left(now)) as bar:

        def update(gap: float) -> None:
            nonlocal plans
            plans = plans.after(gap, bar.elapsed())
            bar.advance()
            bar.describe(plans.words())

        yield update


@contextmanager
def cut_progress(title: str, output: Output, shown: bool) -> Generator[None]:
    """Draw that other cuts are being compared; how many plans that takes is known only at its end."""
    if not shown:
        yield
        return
    from recycle_compiler.cli.progress_bar import ProgressBar

    with ProgressBar(title, 1, "comparing cuts", output.color):
        yield


@contextmanager
def simulation_progress(title: str, total: int, output: Output, shown: bool) -> Generator[Meter]:
    """Draw how far a simulation is."""
    if not shown:
        yield _Unseen()
        return
    from recycle_compiler.cli.progress_bar import ProgressBar

    with ProgressBar(title, max(1, total), "", output.color) as bar:
        yield _Drawn(bar.describe, bar.advance)


class _Unseen:
    def begin(self, policy: str) -> None:
        pass

    def advance(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Drawn:
    begin: Callable[[str], None]
    advance: Callable[[], None]
