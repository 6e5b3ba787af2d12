"""Columns of small numbers with the standard library alone."""

import tracemalloc
import zlib

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.codec import MOST_UNPACKED, Columns, StreamShape, decode_stream, unpack_bytes
from recycle_runtime.plan.isa import NONE, Instruction, Opcode

SHAPE = StreamShape(chunks=4, stages=4, pipelines=3, microbatches=6)


def columns(*rows: Instruction, width: int = 1) -> Columns:
    stored = b""
    for field, column in enumerate(zip(*rows, strict=True)):
        last: dict[int, int] = {}
        for opcode, number in zip((row.opcode for row in rows), column, strict=True):
            difference = number + 1 - (last.get(opcode, 0) if field else 0)
            stored += (difference % (1 << 8 * width)).to_bytes(width, "little")
            last[opcode] = number + 1
    return Columns(stored, (width,) * len(Instruction._fields), len(rows))


STREAM = (
    Instruction(Opcode.RECV_ACTIVATION, 1, 0, 5, inbox=1, neighbour=0),
    Instruction(Opcode.FORWARD, 1, 0, 5, 2, 1),
    Instruction(Opcode.SEND_ACTIVATION, 1, 0, 5, 2, neighbour=7),
    Instruction(Opcode.FORWARD, 1, 1, 0, 1, 0),
    Instruction(Opcode.VALIDATE),
)


def test_a_stream_reads_back() -> None:
    for width in (1, 2, 4):
        assert decode_stream(columns(*STREAM, width=width), 0, 5, (0, 1), SHAPE) == STREAM


def test_some_rows_are_a_stream() -> None:
    both = columns(*STREAM[:3])
    assert decode_stream(both, 0, 3, (0, 1), SHAPE) == STREAM[:3]
    assert decode_stream(both, 1, 3, (0, 1), SHAPE) == STREAM[1:3]
    assert decode_stream(columns(*STREAM), 2, 2, (0, 1), SHAPE) == ()


def test_pipelines_count_from_the_workers_own() -> None:
    """And so do those of neighbours, whose stage stays."""
    assert decode_stream(columns(*STREAM), 0, 5, (2, 1), SHAPE) == (
        Instruction(Opcode.RECV_ACTIVATION, 1, 2, 5, inbox=1, neighbour=2),
        Instruction(Opcode.FORWARD, 1, 2, 5, 2, 1),
        Instruction(Opcode.SEND_ACTIVATION, 1, 2, 5, 2, neighbour=6),
        Instruction(Opcode.FORWARD, 1, 0, 0, 1, 0),
        Instruction(Opcode.VALIDATE),
    )


def test_numbers_out_of_range_are_refused() -> None:
    good = Instruction(Opcode.SEND_ACTIVATION, 3, 2, 5, (1 << 20) - 1, (1 << 20) - 1, 11)
    assert decode_stream(columns(good, width=4), 0, 1, (0, 1), SHAPE) == (good,)
    for field in Instruction._fields[1:]:
        odd = good._replace(**{field: getattr(good, field) + 1})
        assert decode_stream(columns(odd, width=4), 0, 1, (0, 1), SHAPE) is None
    for opcode in (NONE, 0, max(Opcode) + 1, 200):
        odd = good._replace(opcode=opcode)  # pyright: ignore[reportArgumentType]
        assert decode_stream(columns(odd, width=4), 0, 1, (0, 1), SHAPE) is None


@given(st.binary(min_size=70, max_size=70))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    stream = decode_stream(Columns(data, (1,) * 7, 10), 0, 10, (1, 2), SHAPE)
    if stream is None:
        return
    for instruction in stream:
        assert NONE <= instruction.chunk < 4
        assert NONE <= instruction.pipeline < 3
        assert NONE <= instruction.microbatch < 6
        assert NONE <= instruction.neighbour < 12


@given(st.binary(max_size=300))
def test_packed_bytes_are_unpacked_if_all_of_them_are_there(data: bytes) -> None:
    packed = zlib.compress(data)
    assert unpack_bytes(packed, len(data)) == data
    assert unpack_bytes(packed, len(data) + 1) is None
    assert unpack_bytes(packed + b"\0", len(data)) is None
    assert unpack_bytes(packed[:-1], len(data)) is None
    if data:
        assert unpack_bytes(packed, len(data) - 1) is None


@given(st.binary(max_size=40), st.integers(0, 300))
def test_bytes_that_were_not_packed_are_refused(data: bytes, size: int) -> None:
    unpacked = unpack_bytes(data, size)
    assert unpacked is None or len(unpacked) == size


def test_no_file_unpacks_to_more_than_it_says() -> None:
    """The densest possible: zeros. What is stated is looked at first, and no more than that is unpacked."""
    packed = zlib.compress(bytes(64 << 20), 9)
    assert MOST_UNPACKED * len(packed) >= 64 << 20
    tracemalloc.start()
    try:
        assert unpack_bytes(packed, 1000) is None
        assert unpack_bytes(packed[:1000], 1 << 40) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
