"""One worker's stream as bytes, and back. Standard library only; the same bytes on any machine."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from recycle_runtime.plan import stream_layout as layout
from recycle_runtime.plan.isa import NONE, Instruction, Opcode
from recycle_runtime.plan.range_coder import (
    EVEN,
    LIKELY,
    code_symbol,
    ended_exactly,
    finish,
    start_decoding,
    start_encoding,
)
from recycle_runtime.plan.stream_model import code_stream, opcode_context

MOST_INSTRUCTIONS = 1 << 20
MOST_INSTRUCTIONS_PER_BYTE = 400
"""The four bits of an opcode cost at least 1/178 of a bit each: 355 opcodes would fill a byte."""


class Frame(NamedTuple):
    """Whose stream it is: what the codec must know before the first instruction."""

    home: int
    """The worker's own pipeline."""
    is_last_stage: bool
    pipelines: int
    microbatches: int


class Machine(NamedTuple):
    """What runs the model: plain functions on lists here, compiled ones on arrays in the compiler."""

    zeros: Callable[[int], Any]
    contexts: Sequence[int]
    start_encoding: Callable[[Any, int, int], None]
    start_decoding: Callable[[Any, int, int], None]
    code_stream: Callable[[Any], bool]
    finish: Callable[[Any], int]


def can_hold(length: int, count: int) -> bool:
    """Whether so many bytes can stand for so many instructions."""
    return count <= min(MOST_INSTRUCTIONS, MOST_INSTRUCTIONS_PER_BYTE * length)


def decode_stream(data: bytes, count: int, frame: Frame) -> tuple[Instruction, ...] | None:
    """The `count` instructions that the bytes stand for; None when they do not stand for so many."""
    fields = decode_fields(data, count, frame, PLAIN)
    if fields is None:
        return None
    columns = [fields[field :: layout.FIELDS] for field in range(layout.FIELDS)]
    for field in (layout.PIPELINE, layout.PEER):
        columns[field] = [
            NONE if value == NONE else (value + frame.home) % frame.pipelines for value in columns[field]
        ]
    return tuple(map(Instruction, map(Opcode, columns[layout.OPCODE]), *columns[1:]))


def encode_fields(fields: Sequence[int], frame: Frame, machine: Machine) -> bytes:
    """The bytes of a stream given as layout.FIELDS numbers per instruction, pipelines relative to home."""
    room = len(fields) + 1
    while True:
        memory = _new_memory(len(fields) // layout.FIELDS, room, frame, machine)
        start = len(memory) - room
        memory[start - len(fields) : start] = fields
        machine.start_encoding(memory, start, len(memory))
        machine.code_stream(memory)
        length = machine.finish(memory) - start
        if length <= room:
            return bytes(map(int, memory[start : start + length]))
        room = length


def decode_fields(data: bytes, count: int, frame: Frame, machine: Machine) -> Any:
    """The inverse, as a list or an array; None when the bytes do not stand for so many instructions."""
    if not can_hold(len(data), count):
        return None
    memory = _new_memory(count, len(data), frame, machine)
    start = len(memory) - len(data)
    memory[start:] = list(data)
    machine.start_decoding(memory, start, len(memory))
    if not machine.code_stream(memory) or not ended_exactly(memory):
        return None
    return memory[start - count * layout.FIELDS : start]


def _new_memory(count: int, room: int, frame: Frame, machine: Machine) -> Any:
    """Memory for a stream of so many instructions; the last `room` numbers are for its bytes."""
    routes = layout.FIXED
    units = routes + layout.ROUTES * frame.pipelines
    queues = units + layout.UNIT_FIELDS * count
    rows = queues + layout.QUEUES * count
    memory = machine.zeros(rows + layout.FIELDS * count + room)
    told = (count, frame.pipelines, frame.microbatches, int(frame.is_last_stage), rows, routes, queues, units)
    memory[layout.SIZE : layout.SIZE + len(told)] = told
    memory[layout.IS_DUE : layout.FIXED] = machine.contexts
    return memory


def _zeros(size: int) -> list[int]:
    return [0] * size


_USUAL_WORDS = {
    "load": Opcode.LOAD,
    "ra": Opcode.RECV_ACTIVATION,
    "F": Opcode.FORWARD,
    "sa": Opcode.SEND_ACTIVATION,
    "rg": Opcode.RECV_GRADIENT,
    "B": Opcode.BACKWARD,
    "I": Opcode.BACKWARD_INPUT,
    "W": Opcode.BACKWARD_WEIGHT,
    "sg": Opcode.SEND_GRADIENT,
    "reduce": Opcode.REDUCE,
    "step": Opcode.OPTIMIZER,
    "check": Opcode.VALIDATE,
}
# A middle, a first and a last stage. They are part of the format, like all of the model.
_USUAL_STREAMS = (
    "ra F ra sa F ra sa rg I sg W F rg sa I ra sg W F rg sa B ra sg F rg sa B ra sg rg I sg W"
    " reduce step check",
    "load F sa load F sa rg I W load F rg sa I W load F rg sa B load F rg sa B rg I W W reduce step check",
    "ra load F ra I sg W load F I ra sg W load F I ra sg W load F B ra sg load F B sg reduce step check",
)


def _first_contexts() -> tuple[int, ...]:
    """What the model knows at the start: that surprises are rare, and how streams usually go."""
    likely = [LIKELY] * (layout.IS_HOME - layout.IS_DUE)
    memory = _zeros(layout.IS_DUE) + likely + [EVEN] * (layout.FIXED - layout.IS_HOME)
    start_encoding(memory, layout.FIXED, layout.FIXED)
    for line in _USUAL_STREAMS:
        before = previous = 0
        for word in line.split():
            opcode = _USUAL_WORDS[word].value
            code_symbol(memory, opcode_context(before, previous), layout.OPCODE_BITS, opcode)
            before, previous = previous, opcode
    return tuple(memory[layout.IS_DUE :])


PLAIN = Machine(_zeros, _first_contexts(), start_encoding, start_decoding, code_stream, finish)
