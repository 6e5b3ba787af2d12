"""What really ran, and when: one event for each compute instruction, named as plans name ops."""

import time
from typing import NamedTuple

import torch

from recycle_runtime.interpreter import Handler
from recycle_runtime.isa import Instruction, Opcode

_LETTERS = {
    Opcode.FORWARD: "F",
    Opcode.BACKWARD: "B",
    Opcode.BACKWARD_INPUT: "I",
    Opcode.BACKWARD_WEIGHT: "W",
    Opcode.REDUCE: "R",
    Opcode.OPTIMIZER: "O",
}


class Event(NamedTuple):
    """A compute instruction as it ran; times in nanoseconds of the machine's monotonic clock."""

    name: str
    step: int
    start: int
    end: int


class Tracer:
    """Wraps handlers so that they leave events. On a GPU every op is waited for, which costs a little."""

    def __init__(self, device: torch.device) -> None:
        self.events: list[Event] = []
        self._step = 0
        self._wait = device.type == "cuda"

    def begin(self, step: int) -> None:
        """Events from here on belong to this step; what an earlier run of it left is dropped."""
        self._step = step
        while self.events and self.events[-1].step == step:
            self.events.pop()

    def around(self, table: dict[Opcode, Handler]) -> dict[Opcode, Handler]:
        """The same handlers, timed."""
        return {
            opcode: self._timed(handler, _LETTERS[opcode]) if opcode in _LETTERS else handler
            for opcode, handler in table.items()
        }

    def _timed(self, handler: Handler, letter: str) -> Handler:
        def run(instruction: Instruction) -> None:
            start = time.monotonic_ns()
            handler(instruction)
            if self._wait:
                torch.cuda.synchronize()
            self.events.append(Event(op_name(letter, instruction), self._step, start, time.monotonic_ns()))

        return run


def op_name(letter: str, instruction: Instruction) -> str:
    """As the text of a schedule has it: F0.3 is the forward of micro-batch 3 of pipeline 0."""
    if instruction.pipeline < 0:
        return letter
    return f"{letter}{instruction.pipeline}.{instruction.microbatch}"
