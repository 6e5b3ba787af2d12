"""Trace of what really ran: one event for each compute instruction, named as plans name ops, and one for
each wait for data.

An instruction may wait before it computes: for a message, or for a number that all workers add up. A tracer
that listens to the transport knows how long, and says so apart from the rest.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch

from recycle_runtime.execution.interpreter import Handler
from recycle_runtime.execution.op_times import LETTERS
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.chrome_trace import DATA, Event
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.transport.interface import Arrival, PeerSum, Pending, TensorSpec, Transport

_LEAST_WAIT = 20_000
"""Nanoseconds: data that is there is handed over in less, and leaves no event."""


class Tracer:
    """Wraps handlers so that they leave events. On a GPU every op is waited for, which costs a little."""

    def __init__(self, device: torch.device) -> None:
        self.events: list[Event] = []
        self._step = 0
        self._waited = 0
        self._wait = device.type == "cuda"

    def begin(self, step: int) -> None:
        """Events from here on belong to this step; what an earlier run of it left is dropped."""
        self._step = step
        while self.events and self.events[-1].step == step:
            self.events.pop()

    def around(self, table: dict[Opcode, Handler]) -> dict[Opcode, Handler]:
        """The same handlers, timed."""
        found = {
            opcode: self._timed(handler, LETTERS[opcode]) if opcode in LETTERS else handler
            for opcode, handler in table.items()
        }
        if Opcode.GATHER in table:
            found[Opcode.GATHER] = self._gathered(table[Opcode.GATHER])
        return found

    def listening(self, transport: Transport) -> Transport:
        """The same transport; what instructions wait for it is set apart from their work."""
        return _Listening(transport, self)

    def wait(self, pending: Pending) -> Any:
        """Result of `pending.wait()`; its time counts as waiting of the instruction that runs now."""
        start = time.monotonic_ns()
        result = pending.wait()
        self._finish()
        self._waited += time.monotonic_ns() - start
        return result

    def _finish(self) -> None:
        """Wait for what has been computed, and not for messages that are on their way beside it."""
        if self._wait:
            torch.cuda.current_stream().synchronize()

    def waited_for_data(self, start: int, end: int) -> None:
        """So long, in nanoseconds of the monotonic clock."""
        if end - start >= _LEAST_WAIT:
            self.events.append(Event(DATA, self._step, start, end))

    def _gathered(self, handler: Handler) -> Handler:
        """Until the weights of all layers are here, beside what is computed meanwhile."""

        def run(instruction: Instruction) -> None:
            step, start = self._step, time.monotonic_ns()

            def end() -> None:
                self._finish()
                self.events.append(Event("G", step, start, time.monotonic_ns()))

            handler(instruction)(end)

        return run

    def _timed(self, handler: Handler, letter: str) -> Handler:
        def run(instruction: Instruction) -> None:
            self._waited = 0
            start = time.monotonic_ns()
            handler(instruction)
            self._finish()
            end = time.monotonic_ns()
            self.events.append(
                Event(instruction_name(letter, instruction), self._step, start, end, self._waited)
            )

        return run


class _Timed:
    """Something that was started, and whose wait is timed."""

    def __init__(self, pending: Pending, tracer: Tracer) -> None:
        self._pending, self._tracer = pending, tracer

    def wait(self) -> Any:
        return self._tracer.wait(self._pending)


class _Listening:
    """A transport whose messages, and sums over all workers, are waited for under the eyes of a tracer.

    The sum over peers is not: it is the work of a reduction. Copies among peers are: a layer waits for its
    weights.
    """

    def __init__(self, transport: Transport, tracer: Tracer) -> None:
        self._transport, self._tracer = transport, tracer
        self.tensor_group: Any = transport.tensor_group

    @property
    def broken_sums(self) -> frozenset[int]:
        return self._transport.broken_sums

    def send(self, worker: Worker, tensors: Sequence[torch.Tensor]) -> Pending | None:
        return self._listened(self._transport.send(worker, tensors))

    def receive(self, worker: Worker, specs: Sequence[TensorSpec]) -> Arrival:
        return _Timed(self._transport.receive(worker, specs), self._tracer)

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> Pending | None:
        return self._transport.start_peer_sum(chunk, tensor)

    def start_peer_sums(
        self, chunk: int, sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None
    ) -> Pending | None:
        started = self._transport.start_peer_sums(chunk, sums, goes_on=goes_on, after=after)
        return self._listened(started) if all(each.is_copy for each in sums) else started

    def start_sum(self, tensor: torch.Tensor) -> Pending | None:
        return self._listened(self._transport.start_sum(tensor))

    def barrier(self) -> None:
        self._transport.barrier()

    def flush(self) -> None:
        self._transport.flush()

    def close(self) -> None:
        self._transport.close()

    def _listened(self, pending: Pending | None) -> Pending | None:
        return None if pending is None else _Timed(pending, self._tracer)


def instruction_name(letter: str, instruction: Instruction) -> str:
    """As the text of a schedule has it: F0.3 is the forward of micro-batch 3 of pipeline 0."""
    if instruction.pipeline < 0:
        return letter
    return f"{letter}{instruction.pipeline}.{instruction.microbatch}"
