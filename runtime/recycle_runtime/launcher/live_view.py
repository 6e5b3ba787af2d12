"""View of a run in the terminal, while it goes on and in the end. No torch.

On a terminal a few lines are drawn again and again; elsewhere every event is a line, and every step or, where
that would fill a log, one from time to time.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Recovered,
    Starting,
    ToObserver,
)
from recycle_runtime.protocol.messages.steps import StepRow

_ALIVE, _GONE, _NOT_KNOWN = "#", ".", "?"
_COLUMNS = 80
_COMES = ("is restarted", "is started again", "arrives")
"""Words behind the name of a worker that is on its way into the group."""
_Write = Callable[[str], None]
_Take = Callable[[ToObserver], None]


def view(
    stages: int,
    pipelines: int,
    quiet: bool,
    stream: TextIO | None = None,
    *,
    in_lines: bool = False,
    row_every: float = 0.0,
    write: _Write | None = None,
    now: Callable[[], float] = time.monotonic,
) -> _Take:
    """Takes the news of a run. `in_lines`: on a terminal too, which somebody else may write to; `row_every`:
    seconds from one line of a step to the next; `write`: in place of the stream's own."""
    out = sys.stderr if stream is None else stream
    write = write or (lambda text: print(text, end="", file=out, flush=True))
    if quiet:
        return lambda _: None
    if not in_lines and out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _with_joiners(_Table(stages, pipelines, out, write).take)
    return _with_joiners(_Lines(write, row_every, now).take)


def view_summary(recoveries: list[Recovered], made: Sequence[int], wanted: int, first: int = 0) -> str:
    """Recoveries of a run, a line each; empty if there were none. `made`: the steps that counted."""
    rows = [row for row in recoveries if row.causes != ("start",)]
    if not rows:
        return ""
    head = ("step", "detection", "leaving", "regroup", "total", "repeated", "undone", "cause")
    lines = [
        (
            str(row.step),
            *(f"{seconds:.3f} s" for seconds in (row.detection, row.leaving, row.regroup, row.total)),
            f"{row.repeated:.3f} s",
            str(row.undone),
            ", ".join(row.causes),
        )
        for row in rows
    ]
    widths = [max(len(line[number]) for line in (head, *lines)) for number in range(len(head) - 1)]
    text = "\n".join(
        "  ".join(word.rjust(width) for word, width in zip(line, widths, strict=False)) + f"  {line[-1]}"
        for line in (head, *lines)
    )
    missing, twice = len(set(range(first, wanted)) - set(made)), len(made) - len(set(made))
    return f"{text}\nof {wanted - first} steps, {missing} are missing and {twice} counted twice"


def loss_text(loss: float | None) -> str:
    """Of a step; a share of it may have died with a worker."""
    return "not known" if loss is None else f"{loss:.6f}"


def event_of(message: ToObserver) -> str | None:
    """News other than a step, in one line."""
    if isinstance(message, JobEvent):
        return message.text
    if isinstance(message, Recovered) and message.causes != ("start",):
        what = ", ".join(message.causes)
        return f"{what}: continues with step {message.step}, plan {message.plan}, after {message.total:.3f} s"
    return None


def _words(message: ToObserver) -> str | None:
    """News, or what is done before there are any."""
    return message.what if isinstance(message, Starting) else event_of(message)


def _with_joiners(take: _Take) -> _Take:
    """Takes the news, and behind the end an event about workers that had not joined by then."""
    joiners = _Joiners()

    def take_both(message: ToObserver) -> None:
        take(message)
        if (words := joiners.take(message)) is not None:
            take(JobEvent(words))

    return take_both


class _Joiners:
    """Workers that were started again and do not train yet, as far as observers are notified of them.

    A worker takes seconds to start, and gets its state while the others train: a run may end before that.
    """

    def __init__(self) -> None:
        self._coming: dict[str, None] = {}
        """By name, in the order in which they were reported."""
        self._training: frozenset[str] = frozenset()

    def take(self, message: ToObserver) -> str | None:
        """A sentence about them if the run has ended."""
        match message:
            case Hello():
                # A new connection: who has joined or failed since the last one is not told.
                self._coming.clear()
            case JobEvent(text):
                # One of which something else is told has failed.
                self._forget((text.partition(" ")[0],))
                self._note(text)
            case Generation():
                self._training = frozenset(f"{pipeline}:{stage}" for pipeline, stage in message.workers)
                self._forget(self._training)
            case Recovered():
                # A worker may be started again before the others have recovered from its failure.
                for cause in message.causes:
                    self._note(cause)
                # One that was needed at once trains in the generation in which it arrives.
                self._forget(self._training)
            case JobEnded() if self._coming:
                names = ", ".join(self._coming)
                self._coming.clear()
                return f"{names} had not joined when the run ended"
            case _:
                pass
        return None

    def _note(self, text: str) -> None:
        name, _, what = text.partition(" ")
        if what.startswith(_COMES):
            self._coming[name] = None

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._coming.pop(name, None)


class _Lines:
    """A line for each event, for the step behind it, for the last one, and for others when it is time."""

    def __init__(self, write: _Write, row_every: float, now: Callable[[], float]) -> None:
        self._write, self._row_every, self._now = write, row_every, now
        self._row: StepRow | None = None
        """Not shown yet."""
        self._due = float("-inf")

    def take(self, message: ToObserver) -> None:
        if isinstance(message, StepRow):
            self._row = message
            if self._now() >= self._due:
                self._show_step()
        elif isinstance(message, JobEnded):
            self._show_step()
        elif (words := _words(message)) is not None:
            self._write(f"-- {words}\n")
            self._due = float("-inf")

    def _show_step(self) -> None:
        if (row := self._row) is None:
            return
        self._write(f"step {row.step:5}  loss {loss_text(row.loss)}  {row.seconds:.3f} s\n")
        self._row, self._due = None, self._now() + self._row_every


class _Table:
    """A grid of workers with a line above and one below it."""

    def __init__(self, stages: int, pipelines: int, out: TextIO, write: _Write) -> None:
        self._stages, self._pipelines, self._out, self._write = stages, pipelines, out, write
        self._row: StepRow | None = None
        self._places: set[tuple[int, int]] = set()
        self._standbys = 0
        self._event = "starting"
        self._drawn = 0

    def take(self, message: ToObserver) -> None:
        if isinstance(message, StepRow):
            self._row = message
        elif isinstance(message, Generation):
            self._places, self._standbys = set(message.workers), message.standbys
            self._event = self._event if self._event != "starting" else "training"
        elif (words := _words(message)) is not None:
            self._event = words
        else:
            return
        self._draw()

    def _draw(self) -> None:
        lines = [self._head()]
        for pipeline in range(self._pipelines):
            cells = (self._cell(pipeline, stage) for stage in range(self._stages))
            lines.append(f"  pipeline {pipeline:3}  {' '.join(cells)}")
        idle = f"; {self._standbys} of them on standby" if self._standbys else ""
        live = self._row.live if self._row is not None and not self._places else len(self._places)
        lines.append(f"  {live} workers{idle}; {self._event}")
        width = _columns(self._out) - 1
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._write(up + "".join(f"\x1b[2K{line[:width]}\n" for line in lines))
        self._drawn = len(lines)

    def _head(self) -> str:
        if self._row is None:
            return "no step yet"
        row = self._row
        return f"step {row.step}  loss {loss_text(row.loss)}  {row.seconds:.3f} s  plan {row.plan}"

    def _cell(self, pipeline: int, stage: int) -> str:
        """Mark of a worker. A coordinator that continues a generation does not name its workers again."""
        if not self._places:
            return _NOT_KNOWN
        return _ALIVE if (pipeline, stage) in self._places else _GONE


def _columns(out: TextIO) -> int:
    """Some terminals do not know how wide they are, and one may be gone."""
    try:
        return os.get_terminal_size(out.fileno()).columns or _COLUMNS
    except OSError:
        return _COLUMNS
