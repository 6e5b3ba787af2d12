"""Times of a worker's ops while it trains: a median for each kind in each step.

What an op waits for is not its work: its time begins when the last message that it waits for is there. A
reduction is the exception, since adding up with others is all that it does. So is a gather, which ends when
the weights of all layers are here, beside what is computed meanwhile. On a GPU events are recorded in
one step of twenty and read when they have happened, so the host never waits for the device.
"""

import time
from statistics import median
from typing import Any

import torch

from recycle_runtime.execution.hooks import Hooks
from recycle_runtime.execution.interpreter import Handler
from recycle_runtime.plan.isa import Instruction, Opcode

LETTERS = {
    Opcode.FORWARD: "F",
    Opcode.BACKWARD: "B",
    Opcode.BACKWARD_INPUT: "I",
    Opcode.BACKWARD_WEIGHT: "W",
    Opcode.REDUCE: "R",
    Opcode.OPTIMIZER: "O",
}
"""As plans name ops."""
_SAMPLED = 20
"""On a GPU, one step of so many."""
_DIGITS = 9


class OpTimes:
    """Wraps the handlers of a worker, through all its generations."""

    def __init__(self, device: torch.device, hooks: Hooks | None = None) -> None:
        self._hooks, self._on_gpu = hooks or Hooks(), device.type == "cuda"
        self._steps = 0
        self._resumed = 0.0
        self._seconds: dict[str, list[float]] = {}
        self._event: Any = None
        """Start event of the op that runs now, on a GPU."""
        self._recorded: list[tuple[str, Any, Any]] = []

    def around(self, table: dict[Opcode, Handler]) -> dict[Opcode, Handler]:
        """The same handlers, timed."""
        timed = self._timed_on_gpu if self._on_gpu else self._timed
        found = {
            opcode: timed(handler, LETTERS[opcode]) if opcode in LETTERS else handler
            for opcode, handler in table.items()
        }
        if Opcode.GATHER in table:
            found[Opcode.GATHER] = self._gathered(table[Opcode.GATHER])
        return found

    def begin(self) -> None:
        """A step begins, perhaps once more."""
        self._steps += 1
        self._seconds.clear()

    def take(self) -> dict[str, float]:
        """Seconds of each kind of op that was run; of an earlier step or of none on a GPU."""
        if self._recorded and self._recorded[-1][2].query():
            for letter, start, end in self._recorded:
                self._seconds.setdefault(letter, []).append(start.elapsed_time(end) / 1e3)
            self._recorded.clear()
        found = {letter: round(median(seconds), _DIGITS) for letter, seconds in self._seconds.items()}
        self._seconds.clear()
        return found

    def resume(self) -> None:
        """Begin the time of an op here: the data that it has waited for has arrived."""
        self._resumed = time.perf_counter()
        if self._event is not None:
            self._event.record()

    def _gathered(self, handler: Handler) -> Handler:
        def run(instruction: Instruction) -> Any:
            if self._on_gpu and not self._is_sampled:
                return handler(instruction)
            start = self._mark()
            when_here = handler(instruction)
            when_here(lambda: self._note("G", start, self._mark()))
            return when_here

        return run

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, letter: str, start: Any, end: Any) -> None:
        if self._on_gpu:
            self._recorded.append((letter, start, end))
        else:
            self._seconds.setdefault(letter, []).append(end - start)

    @property
    def _is_sampled(self) -> bool:
        """On a GPU: ops of this step are timed."""
        return self._steps % _SAMPLED == _SAMPLED // 2 and len(self._recorded) <= 1 << 16

    def _timed(self, handler: Handler, letter: str) -> Handler:
        hooks, with_waits = self._hooks, letter == "R"

        def run(instruction: Instruction) -> None:
            start = self._resumed = time.perf_counter()
            handler(instruction)
            seconds = time.perf_counter() - (start if with_waits else self._resumed)
            if hooks.slowdown > 1 and not with_waits:
                time.sleep((hooks.slowdown - 1) * seconds)
                seconds = time.perf_counter() - self._resumed
            self._seconds.setdefault(letter, []).append(seconds)

        return run

    def _timed_on_gpu(self, handler: Handler, letter: str) -> Handler:
        with_waits = letter == "R"

        def run(instruction: Instruction) -> None:
            if self._hooks.slowdown > 1 and not with_waits:
                self._slowed(handler, instruction)
                return
            if not self._is_sampled:
                handler(instruction)
                return
            start = self._mark()
            self._event = None if with_waits else start
            try:
                handler(instruction)
            finally:
                self._event = None
            self._note(letter, start, self._mark())

        return run

    def _slowed(self, handler: Handler, instruction: Instruction) -> None:
        """An injected fault: the device is waited for, to know how long it was at work."""
        torch.cuda.synchronize()
        self._resumed = time.perf_counter()
        handler(instruction)
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - self._resumed) * self._hooks.slowdown
        time.sleep(seconds - seconds / self._hooks.slowdown)
        self._seconds.setdefault(LETTERS[instruction.opcode], []).append(seconds)
