"""Assembly is read by people, and reads back exactly."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.assembly import NAMES, AssemblyError, assemble, disassemble, stream_window
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.compiler.backends.instruction_lists import streams
from tests.conftest import GOLDEN

STREAM = (
    Instruction(Opcode.RECV_ACTIVATION, 1, 1, 3, inbox=2, neighbour=1),
    Instruction(Opcode.FORWARD, 1, 1, 3, 0, 2),
    Instruction(Opcode.SEND_ACTIVATION, 1, 1, 3, 0, neighbour=6),
    Instruction(Opcode.LOAD, 1, 0, 12, 1),
    Instruction(Opcode.FORWARD, 1, 0, 12, 1),
    Instruction(Opcode.RECV_GRADIENT, 1, 1, 3, inbox=0, neighbour=6),
    Instruction(Opcode.BACKWARD_INPUT, 1, 1, 3, 0, 0),
    Instruction(Opcode.SEND_GRADIENT, 1, 1, 3, 0, neighbour=1),
    Instruction(Opcode.BACKWARD_WEIGHT, 1, 1, 3, 0),
    Instruction(Opcode.OPTIMIZER, 1),
)
TEXT = """\
worker 0:1
    0  recv-activation   p1 m3    i2 <- 1:0
    1  forward           p1 m3    b0 <- i2
    2  send-activation   p1 m3    b0 -> 0:2
    3  load              p0 m12   b1
    4  forward           p0 m12   b1
    5  recv-gradient     p1 m3    i0 <- 0:2
    6  backward-input    p1 m3    b0 <- i0
    7  send-gradient     p1 m3    b0 -> 1:0
    8  backward-weight   p1 m3    b0
    9  optimizer
"""


def test_one_line_for_each_instruction() -> None:
    assert disassemble(STREAM, (0, 1), 3) == TEXT
    assert assemble(TEXT, 3) == ((0, 1), STREAM)


@given(streams(4, 5, 3, 200), st.tuples(st.integers(0, 2), st.integers(0, 40)))
def test_every_stream_reads_back(stream: list[Instruction], worker: tuple[int, int]) -> None:
    assert assemble(disassemble(stream, worker, 3), 3) == (worker, tuple(stream))


def test_a_chunk_is_written_where_it_is_not_that_of_the_stage() -> None:
    stream = (
        Instruction(Opcode.FORWARD, 3, 0, 12, 1, 0),
        Instruction(Opcode.SEND_ACTIVATION, 3, 0, 12, 1, neighbour=5),
        Instruction(Opcode.REDUCE, 1),
        Instruction(Opcode.REDUCE, 3),
        Instruction(Opcode.VALIDATE),
    )
    text = """\
worker 2:1
    0  forward           p0 m12 c3 b1 <- i0
    1  send-activation   p0 m12 c3 b1 -> 2:1
    2  reduce
    3  reduce            c3
    4  validate
"""
    assert disassemble(stream, (2, 1), 3) == text
    assert assemble(text, 3) == ((2, 1), stream)


def test_a_window_has_an_arrow() -> None:
    assert stream_window(STREAM, 2, (0, 1), 3, around=1) == (
        "      1  forward           p1 m3    b0 <- i2\n"
        "->    2  send-activation   p1 m3    b0 -> 0:2\n"
        "      3  load              p0 m12   b1"
    )


def test_a_window_at_an_end_is_shorter() -> None:
    assert stream_window(STREAM, 9, (0, 1), 3, around=2) == (
        "      7  send-gradient     p1 m3    b0 -> 1:0\n"
        "      8  backward-weight   p1 m3    b0\n"
        "->    9  optimizer"
    )
    assert stream_window(STREAM, 0, (0, 1), 3).startswith("->    0  recv-activation")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected `worker PIPELINE:STAGE`, got ``"),
        ("worker 0", "line 1: expected `worker PIPELINE:STAGE`, got `worker 0`"),
        ("worker 0:1\n  0 load p0", "line 2: expected a position and an instruction, got `0 load p0`"),
        ("worker 0:1\n  1 reduce", "line 2: expected position 0, got 1"),
        ("worker 0:1\n  0 reduce\n  1 jump", "line 3: unknown instruction `jump`"),
        ("worker 0:1\n  0 reduce b1", "line 2: reduce takes no buffer"),
        ("worker 0:1\n  0 load p0 m1", "line 2: load needs a buffer"),
        ("worker 0:1\n  0 forward b1", "line 2: forward needs a microbatch"),
        ("worker 0:1\n  0 validate c1", "line 2: validate takes no chunk"),
        ("worker 0:1\n  0 recv-gradient p0 m1 i1", "line 2: recv-gradient needs a neighbour"),
        (
            "worker 0:1\n  0 recv-gradient p0 m1 i1 <- 3:0",
            "line 2: the job has 3 pipelines, there is no 3:0",
        ),
    ],
)
def test_what_cannot_be_read_is_named(text: str, message: str) -> None:
    with pytest.raises(AssemblyError) as caught:
        assemble(text, 3)
    assert str(caught.value) == message


def test_opcodes_keep_their_numbers(golden: Callable[[str, str], None]) -> None:
    """Numbers that bundles hold never change and are never used again; new opcodes come after them."""
    known = [line.split() for line in (GOLDEN / "streams" / "opcodes.txt").read_text().splitlines()]
    assert [NAMES[Opcode(int(number))] for number, _ in known] == [name for _, name in known]
    golden("streams/opcodes.txt", "".join(f"{opcode.value:2} {NAMES[opcode]}\n" for opcode in Opcode))
