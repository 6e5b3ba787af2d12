"""The range coder and the text codec under the stream codec."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.range_coder import (
    EVEN,
    LARGEST_NUMBER,
    LIKELY,
    NUMBER_CONTEXTS,
    REGISTERS,
    code_bit,
    code_number,
    code_symbol,
    ended_exactly,
    finish,
    start_decoding,
    start_encoding,
)
from recycle_runtime.plan.text_codec import decode_text, encode_text

DATA = REGISTERS + NUMBER_CONTEXTS + 300
ROOM = 10_000


def fresh_memory(data: bytes, context: int = EVEN) -> list[int]:
    return [0] * REGISTERS + [context] * (DATA - REGISTERS) + list(data)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 255), st.integers(0, LARGEST_NUMBER)), max_size=50)
)
def test_what_is_encoded_is_decoded(values: list[tuple[int, int, int]]) -> None:
    memory = fresh_memory(bytes(ROOM))
    start_encoding(memory, DATA, DATA + ROOM)
    for bit, symbol, number in values:
        code_bit(memory, REGISTERS, bit)
        code_symbol(memory, REGISTERS + 1, 8, symbol)
        code_number(memory, REGISTERS + 257, number)
    data = bytes(memory[DATA : finish(memory)])
    memory = fresh_memory(data)
    start_decoding(memory, DATA, DATA + len(data))
    for value in values:
        bit = code_bit(memory, REGISTERS, 0)
        symbol = code_symbol(memory, REGISTERS + 1, 8, 0)
        assert (bit, symbol, code_number(memory, REGISTERS + 257, 0)) == value
    assert ended_exactly(memory)


def test_bytes_beyond_the_room_are_counted() -> None:
    memory = fresh_memory(b"")
    start_encoding(memory, DATA, DATA)
    for bit in (0, 1) * 40:
        code_bit(memory, REGISTERS, bit)
    assert finish(memory) > DATA + 8
    assert len(memory) == DATA


def test_a_context_learns_and_forgets() -> None:
    memory = fresh_memory(bytes(ROOM), LIKELY)
    start_encoding(memory, DATA, DATA + ROOM)
    for _ in range(200):
        code_bit(memory, REGISTERS, 0)
    assert memory[REGISTERS] >> 8 < 600
    for _ in range(200):
        code_bit(memory, REGISTERS, 1)
    assert memory[REGISTERS] >> 8 > 65536 - 600


@given(st.binary(max_size=200))
def test_any_text_survives(text: bytes) -> None:
    assert decode_text(encode_text(text), len(text)) == text


@given(st.binary(max_size=30), st.integers(0, 60))
def test_any_bytes_are_a_text_or_refused(data: bytes, length: int) -> None:
    text = decode_text(data, length)
    assert text is None or len(text) == length


def test_a_job_is_packed_well() -> None:
    text = (
        b"job mine {\n  parallel { pipeline = 8  data = 2  tensor = 4 }\n  batch { microbatches = 12 }\n}\n"
    )
    assert len(encode_text(text)) < len(text) // 2


def test_the_format_of_texts_has_not_changed() -> None:
    """When this fails, bundles that exist can no longer be read: raise the format version."""
    assert encode_text(b"job a { solver { seed = 7 } }\n").hex() == "50b847c55b1c88b77e339b2f2cce28"
