"""What a run looks like while it goes on, and in the end. Standard library only.

On a terminal a few lines are drawn again and again; elsewhere every step and every event is a line.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from recycle_runtime.protocol.messages import Generation, JobEvent, Recovered, Starting, StepRow, ToObserver

_ALIVE, _GONE = "#", "."


def view(
    stages: int, pipelines: int, quiet: bool, stream: TextIO | None = None, *, in_lines: bool = False
) -> Callable[[ToObserver], None]:
    """Takes the news of a run. `in_lines`: on a terminal too, which somebody else may write to."""
    out = sys.stderr if stream is None else stream
    if quiet:
        return lambda _: None
    if not in_lines and out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _Table(stages, pipelines, out).take
    return lambda message: _tell(message, out)


def summary(recoveries: list[Recovered], made: Sequence[int], wanted: int, first: int = 0) -> str:
    """What happened besides training, a line each; empty if nothing did. `made`: the steps that counted."""
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


def _tell(message: ToObserver, out: TextIO) -> None:
    if isinstance(message, StepRow):
        print(f"step {message.step:5}  loss {loss_text(message.loss)}  {message.seconds:.3f} s", file=out)
    elif (words := _words(message)) is not None:
        print(f"-- {words}", file=out)


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


class _Table:
    """A grid of workers with a line above and one below it."""

    def __init__(self, stages: int, pipelines: int, out: TextIO) -> None:
        self._stages, self._pipelines, self._out = stages, pipelines, out
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
        lines.append(f"  {len(self._places)} workers{idle}; {self._event}")
        # Some terminals do not know how wide they are.
        width = (os.get_terminal_size(self._out.fileno()).columns or 80) - 1
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._out.write(up + "".join(f"\x1b[2K{line[:width]}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)

    def _head(self) -> str:
        if self._row is None:
            return "no step yet"
        row = self._row
        return f"step {row.step}  loss {loss_text(row.loss)}  {row.seconds:.3f} s  plan {row.plan}"

    def _cell(self, pipeline: int, stage: int) -> str:
        return _ALIVE if (pipeline, stage) in self._places else _GONE
