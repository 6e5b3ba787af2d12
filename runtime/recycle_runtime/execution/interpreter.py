"""The loop that runs a stream: look up the handler of an opcode and call it. It decides nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recycle_runtime.plan.assembly import Worker, stream_window
from recycle_runtime.plan.isa import USES_MICROBATCH, Instruction, Opcode

Handler = Callable[[Instruction], Any]
"""The result is for those that time the op: a GATHER returns a callback for the arrival of the weights."""


class StreamError(RuntimeError):
    """An instruction failed: says which, where, and what stands around it."""

    def __init__(self, told: str, head: str = "", where: str = "") -> None:
        super().__init__(told)
        self.head = head or told
        """Summary of the failure, in a line."""
        self.where = where
        """Instruction, step and worker of the failure, in a few words."""


class RunAgain(Exception):  # noqa: N818
    """Raised by a handler when the step has to be run once more from its start."""


class Interpreter:
    """Runs one worker's stream, once per call."""

    def __init__(
        self,
        stream: Sequence[Instruction],
        handlers: Mapping[Opcode, Handler],
        worker: Worker,
        plan: int,
        pipelines: int,
        before: Callable[[int], None] | None = None,
    ) -> None:
        self.stream = stream
        self.worker = worker
        self.plan = plan
        self.pipelines = pipelines
        """Of the job: neighbours have numbers that depend on it."""
        self.position = 0
        """The instruction that runs now, or the one that failed."""
        self._before = before
        """Called with the position of every instruction before it runs; what it raises ends the run."""
        self._code = [(handlers[instruction.opcode], instruction) for instruction in stream]

    def run(self, step: int) -> None:
        """All instructions in order; StreamError, with the cause attached, when one fails."""
        position = 0
        try:
            if (before := self._before) is None:
                for position, (handler, instruction) in enumerate(self._code):  # noqa: B007
                    handler(instruction)
            else:
                for position, (handler, instruction) in enumerate(self._code):
                    before(position)
                    handler(instruction)
        except RunAgain:
            raise
        except Exception as cause:
            self.position = position
            raise self._error(position, step, cause) from cause

    def _error(self, position: int, step: int, cause: Exception) -> StreamError:
        pipeline, stage = self.worker
        head = (
            f"worker {pipeline}:{stage}, step {step}, plan {self.plan}, instruction {position}: "
            f"{type(cause).__name__}: {cause}"
        )
        told = f"{head}\n{stream_window(self.stream, position, self.worker, self.pipelines)}"
        named = self._named(position, getattr(cause, "doing", ""))
        return StreamError(told, head, f"worker {pipeline}:{stage}, step {step}, {named}")

    def _named(self, position: int, doing: str) -> str:
        """An instruction as a user would call it; `doing` if it is something else that has failed in it."""
        instruction = self.stream[position]
        name = doing or instruction.opcode.name.lower().replace("_", " ")
        if instruction.opcode not in USES_MICROBATCH:
            return name
        return f"{name} of micro-batch {instruction.microbatch} of pipeline {instruction.pipeline}"
