"""Check that streams do the work of a step: each micro-batch once on each chunk. Standard library only.

The verifier of the compiler proves more, and before a run. This is what a run looks at by itself, since a
plan that leaves work out would train something else without an error: every worker checks its own stream, and
says for each chunk one number that stands for the micro-batches that it runs there. Over all workers of a
chunk these add up to the number of all micro-batches, or one of them is left out or run twice.
"""

import functools
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from recycle_runtime.plan.isa import Instruction, Opcode

_MODULUS = 1 << 48


class Share(NamedTuple):
    """The micro-batches that a worker runs on a chunk."""

    chunk: int
    units: int
    """The sum of a number for each of them."""


class StreamMistakeError(Exception):
    """A stream does not do what it should; the text names the instruction."""


_Unit = tuple[int, int, int]
"""Chunk, pipeline and micro-batch."""


def work_shares(stream: Sequence[Instruction], microbatches: int) -> tuple[Share, ...]:
    """Work of a stream; StreamMistakeError where the stream does not do all of it, once, before it steps."""
    _check(stream)
    sums: dict[int, int] = {}
    for each in stream:
        if each.opcode is Opcode.FORWARD:
            number = _number(each.pipeline * microbatches + each.microbatch)
            sums[each.chunk] = (sums.get(each.chunk, 0) + number) % _MODULUS
    return tuple(Share(chunk, sums[chunk]) for chunk in sorted(sums))


def chunks_amiss(shares: Iterable[Share], chunks: int, units: int) -> list[int]:
    """The chunks on which workers with these shares do not run each of so many micro-batches once."""
    whole = _number_of_all(units)
    sums = dict.fromkeys(range(chunks), 0)
    for share in shares:
        sums[share.chunk] = (sums.get(share.chunk, 0) + share.units) % _MODULUS
    return [chunk for chunk, found in sums.items() if found != whole]


def _number(unit: int) -> int:
    """One for each micro-batch, so that sums of different sets differ."""
    return int.from_bytes(blake2b(unit.to_bytes(8, "little"), digest_size=6).digest(), "little")


@functools.cache
def _number_of_all(units: int) -> int:
    return sum(map(_number, range(units))) % _MODULUS


def _check(stream: Sequence[Instruction]) -> None:
    found = _Found()
    for place, instruction in enumerate(stream):
        if (mistake := found.next(instruction)) is not None:
            name = instruction.opcode.name.lower().replace("_", "-")
            raise StreamMistakeError(f"instruction {place} ({name}): {mistake}")
    if left := found.not_stepped():
        raise StreamMistakeError(f"chunk {left[0]} is worked on and not stepped")


class _Found:
    """Progress of a stream."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[_Unit, Opcode]] = {}
        """Unit in each buffer, and the last op on it."""
        self._reduced: set[int] = set()
        self._stepped: set[int] = set()
        self._gathered: set[int] = set()
        self._chunks: set[int] = set()

    def next(self, instruction: Instruction) -> str | None:
        """Mistake in the next instruction, after those before it; None if there is none."""
        opcode, chunk = instruction.opcode, instruction.chunk
        if opcode is Opcode.FORWARD:
            return self._forward(instruction)
        if opcode in _LAST_BEFORE:
            return self._backward(instruction)
        if opcode is Opcode.REDUCE:
            return self._reduce(chunk)
        if opcode is Opcode.OPTIMIZER:
            is_right = chunk in self._reduced and chunk not in self._stepped
            self._stepped.add(chunk)
            return None if is_right else f"chunk {chunk} is not reduced once before each step"
        if opcode is Opcode.GATHER:
            is_right = chunk in self._stepped and chunk not in self._gathered
            self._gathered.add(chunk)
            return None if is_right else f"the weights of chunk {chunk} are not sent once after its step"
        return None

    def not_stepped(self) -> list[int]:
        return sorted(self._chunks - self._stepped)

    def _forward(self, instruction: Instruction) -> str | None:
        unit = _unit(instruction)
        self._chunks.add(instruction.chunk)
        if instruction.chunk in self._reduced:
            return f"chunk {instruction.chunk} is reduced already"
        if instruction.buffer in self._held:
            return f"buffer {instruction.buffer} is in use"
        self._held[instruction.buffer] = unit, Opcode.FORWARD
        return None

    def _backward(self, instruction: Instruction) -> str | None:
        opcode, buffer = instruction.opcode, instruction.buffer
        if self._held.get(buffer) != (_unit(instruction), _LAST_BEFORE[opcode]):
            return f"buffer {buffer} does not hold what it goes back through"
        if opcode is Opcode.BACKWARD_INPUT:
            self._held[buffer] = _unit(instruction), opcode
        else:
            del self._held[buffer]
        return None

    def _reduce(self, chunk: int) -> str | None:
        if chunk in self._reduced:
            return f"chunk {chunk} is reduced already"
        self._chunks.add(chunk)
        self._reduced.add(chunk)
        left = next((unit for unit, _ in self._held.values() if unit[0] == chunk), None)
        return None if left is None else f"micro-batch {left[2]} of pipeline {left[1]} has not gone back yet"


_LAST_BEFORE = {
    Opcode.BACKWARD: Opcode.FORWARD,
    Opcode.BACKWARD_INPUT: Opcode.FORWARD,
    Opcode.BACKWARD_WEIGHT: Opcode.BACKWARD_INPUT,
}


def _unit(instruction: Instruction) -> _Unit:
    return instruction.chunk, instruction.pipeline, instruction.microbatch
