"""The stream codec with the standard library alone."""

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan import codec
from recycle_runtime.plan.codec import PLAIN, Frame, can_hold, decode_fields, decode_stream, encode_fields
from recycle_runtime.plan.isa import NONE, Instruction, Opcode

FRAME = Frame(home=0, is_last_stage=False, pipelines=4, microbatches=64)


def one_forward_one_backward(microbatches: int) -> list[Instruction]:
    """A middle stage that keeps two micro-batches."""
    stream: list[Instruction] = []
    for microbatch in range(microbatches + 1):
        if microbatch < microbatches:
            buffer = microbatch % 2
            stream.append(Instruction(Opcode.RECV_ACTIVATION, 0, microbatch, inbox=0, peer=0))
            stream.append(Instruction(Opcode.FORWARD, 0, microbatch, buffer, 0))
            stream.append(Instruction(Opcode.SEND_ACTIVATION, 0, microbatch, buffer, peer=0))
        if microbatch:
            done, buffer = microbatch - 1, (microbatch - 1) % 2
            stream.append(Instruction(Opcode.RECV_GRADIENT, 0, done, inbox=0, peer=0))
            stream.append(Instruction(Opcode.BACKWARD, 0, done, buffer, 0))
            stream.append(Instruction(Opcode.SEND_GRADIENT, 0, done, buffer, peer=0))
    return [*stream, Instruction(Opcode.REDUCE), Instruction(Opcode.OPTIMIZER)]


def encode(stream: list[Instruction], frame: Frame = FRAME) -> bytes:
    return encode_fields([int(field) for instruction in stream for field in instruction], frame, PLAIN)


def test_a_regular_stream_costs_next_to_nothing() -> None:
    stream = one_forward_one_backward(64)
    data = encode(stream)
    assert decode_stream(data, len(stream), FRAME) == tuple(stream)
    assert len(data) < 32


def test_the_format_has_not_changed() -> None:
    """When this fails, bundles that exist can no longer be read: raise the format version."""
    twisted = [
        Instruction(Opcode.LOAD, 3, 9, 600),
        Instruction(Opcode.FORWARD, 3, 9, 600, 7),
        Instruction(Opcode.FORWARD, 1, 2, 0),
        Instruction(Opcode.SEND_ACTIVATION, 1, 2, 4, peer=2),
        Instruction(Opcode.RECV_GRADIENT, 1, 2, inbox=1_000_000, peer=3),
        Instruction(Opcode.BACKWARD_INPUT, 1, 2, 0),
        Instruction(Opcode.BACKWARD_WEIGHT, 2, 63, 1),
        Instruction(Opcode.BARRIER),
    ]
    assert encode(twisted).hex() == "d841c8a0c1c19ac94d6ca0cb19c1eeb2651d586a75"
    assert hashlib.sha256(encode(one_forward_one_backward(64))).hexdigest()[:16] == "c87632468053a167"


def test_a_stream_of_nothing() -> None:
    assert decode_stream(encode([]), 0, FRAME) == ()


@pytest.mark.parametrize("home", range(4))
def test_pipelines_count_from_home(home: int) -> None:
    stream = one_forward_one_backward(3)
    moved = tuple(
        instruction._replace(
            pipeline=home if instruction.pipeline == 0 else NONE, peer=home if instruction.peer == 0 else NONE
        )
        for instruction in stream
    )
    assert decode_stream(encode(stream), len(stream), FRAME._replace(home=home)) == moved


def test_no_stream_is_denser_than_the_limit() -> None:
    """The densest possible: always the same opcode, which has no fields."""
    for count in (1, 1000, 100_000):
        data = encode([Instruction(Opcode.BARRIER)] * count)
        assert can_hold(len(data), count)
    assert not can_hold(1 << 30, codec.MOST_INSTRUCTIONS + 1)


def test_a_longer_or_shorter_or_cut_stream_is_noticed() -> None:
    stream = one_forward_one_backward(20)
    data = encode(stream)
    assert decode_stream(data, len(stream), FRAME) == tuple(stream)
    assert all(decode_stream(data[:end], len(stream), FRAME) != tuple(stream) for end in range(len(data)))
    assert decode_fields(data + b"\0", len(stream), FRAME, PLAIN) is None
    assert decode_fields(data, 2, FRAME, PLAIN) is None
    assert decode_fields(data, 400 * len(data), FRAME, PLAIN) is None
    assert decode_fields(b"", 1, FRAME, PLAIN) is None


@given(st.binary(max_size=40), st.integers(0, 300), st.booleans())
def test_any_bytes_are_decoded_or_refused(data: bytes, count: int, is_last_stage: bool) -> None:
    frame = Frame(1, is_last_stage, 3, 5)
    stream = decode_stream(data, count, frame)
    if stream is None:
        return
    assert len(stream) == count
    for instruction in stream:
        assert NONE <= instruction.pipeline < 3
        assert NONE <= instruction.microbatch < 5
        assert NONE <= instruction.peer < 3
        assert min(instruction.buffer, instruction.inbox) >= NONE
        assert max(instruction.buffer, instruction.inbox) < 1 << 20


def test_many_instructions_from_few_bytes_are_soon_over() -> None:
    dice = random.Random(3)
    for _ in range(50):
        data = dice.randbytes(4)
        decode_fields(data, 400 * len(data), Frame(0, True, 1000, 1000), PLAIN)
