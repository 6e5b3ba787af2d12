"""Evaluation: forward passes of a plan's stream, without gradients.

    stream        LOAD F S R F S I W ... REDUCE OPTIMIZER
    evaluation    LOAD F S R F S                             as often as there are micro-batches for it

What is left of a stream is in a valid order still: a forward never waits for a backward of another
micro-batch, and on every way between two workers receives stay in the order of the sends.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.device_copies import to_device
from recycle_runtime.execution.handlers import Buffer, OpHandlers
from recycle_runtime.execution.interpreter import Interpreter
from recycle_runtime.execution.shapes import as_tuple
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.plan_book import without_microbatch
from recycle_runtime.program.named_inputs import with_host_text

_FORWARD = frozenset({Opcode.LOAD, Opcode.RECV_ACTIVATION, Opcode.FORWARD, Opcode.SEND_ACTIVATION})
_ROUNDS = frozenset({Opcode.FORWARD, Opcode.SERVE_FORWARD})


class EvaluationData(Protocol):
    """The micro-batches of an evaluation, by number from 0."""

    @property
    def count(self) -> int: ...

    def item(self, index: int) -> tuple[Any, Any]:
        """(input, target)."""
        ...

    def signature(self, index: int) -> str:
        """Types and shapes of the input."""
        ...


def forward_only(
    stream: Iterable[Instruction], microbatches: int, items: int, *, in_rounds: bool = False
) -> list[Instruction]:
    """The part of a stream for the forwards of its first `items` micro-batches of the step. `in_rounds`:
    peers make their forwards together, so one without a micro-batch serves the others."""
    found: list[Instruction] = []
    for step in stream:
        if step.opcode in _FORWARD and _index(step, microbatches) < items:
            found.append(step)
        elif in_rounds and step.opcode in _ROUNDS:
            found.append(without_microbatch(step))
    return found


class EvaluationHandlers(OpHandlers):
    """Handlers of a stream without backwards: an activation is dropped as soon as it is sent."""

    data: EvaluationData
    first = 0
    """The item that the first micro-batch of the stream is."""

    def load(self, instruction: Instruction) -> None:
        buffer = self._buffers.setdefault(instruction.buffer, Buffer())
        chunk = self._chunks[instruction.chunk]
        inputs, target = self.data.item(self.first + self._index(instruction))
        if chunk.is_first:
            arguments = chunk.program.arguments(inputs)
            texts = with_host_text(inputs, arguments)
            moved = to_device(list(arguments[texts:]), self._device)
            buffer.inputs = (*arguments[:texts], *moved)
        if chunk.is_last:
            is_tensor = isinstance(target, torch.Tensor)
            buffer.target = to_device([target], self._device)[0] if is_tensor else target

    def forward(self, instruction: Instruction) -> None:
        buffer = self._buffers.setdefault(instruction.buffer, Buffer())
        chunk = self._chunks[instruction.chunk]
        if instruction.inbox != NONE:
            buffer.inputs = tuple(self._inboxes.pop(instruction.inbox).wait())
        index = self._index(instruction)
        output = chunk.forward(buffer.inputs, 0, self.first + index)
        buffer.inputs = ()
        if chunk.is_last:
            self._add_loss(chunk.loss(output, buffer.target))
            del self._buffers[instruction.buffer]
        else:
            buffer.outputs = as_tuple(output)
            self._shapes[chunk.number].show(self._signature(index), buffer.outputs)

    def serve_forward(self, instruction: Instruction) -> None:
        self._chunks[instruction.chunk].serve()

    def send_activation(self, instruction: Instruction) -> None:
        outputs = self._buffers.pop(instruction.buffer).outputs
        # The transport holds what it sends until all is flushed: nobody waits for a receiver meanwhile.
        self._send(instruction, list(outputs), to_chunk=instruction.chunk + 1)

    def _signature(self, index: int) -> str:
        # What crosses may be something else than in training: a model can know which it is.
        return f"evaluated {self.data.signature(self.first + index)}"


def evaluate(
    handlers: EvaluationHandlers,
    data: EvaluationData,
    chunks: Mapping[int, Chunk],
    interpreter: Callable[[Sequence[Instruction]], Interpreter],
    stream: Sequence[Instruction],
    slots: int,
    microbatches: int,
    *,
    in_rounds: bool = False,
) -> float | None:
    """Share of this worker in the sum of losses over all items; None where losses are not computed.

    `slots` is the number of micro-batches that the stream has, `microbatches` those of one pipeline.
    """
    handlers.data = data
    handlers.drop()
    total = 0.0
    with torch.no_grad(), _evaluating(chunks.values()):
        for first in range(0, data.count, slots):
            handlers.first = first
            left = forward_only(stream, microbatches, data.count - first, in_rounds=in_rounds)
            interpreter(left).run(first)
            total += handlers.end() or 0.0
            handlers.drop()
    return None if handlers.loss is None else total


@contextmanager
def _evaluating(chunks: Iterable[Chunk]) -> Generator[None]:
    """All modules in evaluation mode; afterwards each is in the mode that it was in."""
    modules = [module for chunk in chunks for module in chunk.module.modules()]
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _index(instruction: Instruction, microbatches: int) -> int:
    """Of the micro-batch among all of the step."""
    return instruction.pipeline * microbatches + instruction.microbatch
