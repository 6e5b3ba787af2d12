"""W of micro-batches while rounds exchange tokens, as streams mean it: see `plan.overlap`.

    F1:  compute | rows to experts | compute | rows back | compute
                 | a half of W0    |         | the rest  |

The parts of a W that are computed in a round are spread over its exchanges, and counted in pieces: a piece is
what one layer's weights need. How much of it goes into a round follows from the times of the job alone.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from recycle_runtime.execution.split_backward import WeightWork
from recycle_runtime.experts.exchange import meanwhile
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.overlap import StreamOp, shares_of_weights

WEIGHTS = (Opcode.BACKWARD_WEIGHT, Opcode.SERVE_BACKWARD_WEIGHT)
ROUNDS = (
    Opcode.FORWARD,
    Opcode.BACKWARD,
    Opcode.BACKWARD_INPUT,
    Opcode.SERVE_FORWARD,
    Opcode.SERVE_BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT,
)


class PlannedJob(Protocol):
    """Of a bundle."""

    def job_line(self, name: str) -> tuple[str, ...]: ...


class Part(NamedTuple):
    """Of the W of a buffer, a part that is computed in one round: from so much of it on, and up to that."""

    buffer: int
    begin: float
    end: float


class Overlap:
    """Computation of one worker in its rounds, step by step."""

    def __init__(
        self,
        job: PlannedJob,
        stream: Sequence[Instruction],
        mixtures: Mapping[int, int],
        works: Callable[[int], Sequence[WeightWork]],
        device: torch.device,
    ) -> None:
        """`mixtures`: layers of each chunk in whose rounds rows travel twice; `works` has what the weights of
        a buffer still need."""
        self._works, self._device = works, device
        self._mixtures = mixtures
        self._parts = parts_of_rounds(job, stream)
        self._round = -1
        self._pieces: dict[int, int] = {}
        """Of each buffer whose W has begun: all that there were."""
        self._exchanges = 0
        """So far in the round that runs."""

    def begin(self) -> None:
        """A step begins, or nothing of it is left."""
        self._round = -1
        self._pieces.clear()

    def around(self, table: Mapping[Opcode, Callable[[Instruction], None]]) -> dict[Opcode, Any]:
        """The same handlers, with rounds in which parts of W are computed."""
        return {
            opcode: self._in_round(handler) if opcode in ROUNDS else handler
            for opcode, handler in table.items()
        }

    def _in_round(self, handler: Callable[[Instruction], None]) -> Callable[[Instruction], None]:
        def run(instruction: Instruction) -> None:
            with self._next_round(instruction.chunk):
                handler(instruction)

        return run

    @contextmanager
    def _next_round(self, chunk: int) -> Generator[None]:
        self._round += 1
        self._exchanges = 0
        if not (parts := self._parts[self._round]):
            yield
            return
        with meanwhile(lambda: self._compute(parts, 2 * self._mixtures[chunk])):
            yield

    def _compute(self, parts: Sequence[Part], exchanges: int) -> None:
        """In one exchange more of the round that runs."""
        self._exchanges += 1
        left = sum(part.end - part.begin for part in parts) * min(1.0, self._exchanges / exchanges)
        for buffer, begin, end in parts:
            self._compute_until(buffer, min(end, begin + left))
            left -= end - begin
            if left <= 0:
                break

    @torch.no_grad()
    def _compute_until(self, buffer: int, share: float) -> None:
        works = self._works(buffer)
        left = sum(work.pieces for work in works)
        pieces = self._pieces.setdefault(buffer, left)
        count = left - (pieces - round(share * pieces))
        with torch.autocast(self._device.type, enabled=False):
            for work in works:
                count -= work.run_some(count)

    def end(self, buffer: int) -> None:
        """Forget a buffer: the rest of its W is computed at its own instruction."""
        self._pieces.pop(buffer, None)


def parts_of_rounds(job: PlannedJob, stream: Sequence[Instruction]) -> list[list[Part]]:
    """Of each round of a stream, in order."""
    weight, exchange = (tuple(map(int, job.job_line(name))) for name in ("backward_weight", "exchange"))
    ops = [each for each in stream if each.opcode in WEIGHTS or each.opcode in ROUNDS]
    found = {place: list[Part]() for place, each in enumerate(ops) if each.opcode in ROUNDS}
    if exchange:
        is_weight = [each.opcode in WEIGHTS for each in ops]
        ticks = [
            (weight if late else exchange)[each.chunk] for each, late in zip(ops, is_weight, strict=True)
        ]
        told = map(StreamOp, (each.buffer for each in ops), is_weight, ticks)
        for each, shares in zip(ops, shares_of_weights(told), strict=True):
            end = 0.0
            for place, part in shares:
                begin, end = end, end + part / weight[each.chunk]
                found[place].append(Part(each.buffer, begin, end))
    return list(found.values())
