"""Hypothesis strategies for streams that are well formed and otherwise as odd as can be."""

from hypothesis import strategies as st

from recycle_runtime.plan.codec import LARGEST_NUMBER
from recycle_runtime.plan.isa import (
    CONSUMES,
    NONE,
    RECEIVES,
    USES_BUFFER,
    USES_CHUNK,
    USES_MICROBATCH,
    USES_NEIGHBOUR,
    Instruction,
    Opcode,
)

NUMBERS = st.one_of(st.integers(0, 5), st.integers(500, 530), st.integers(0, LARGEST_NUMBER))


@st.composite
def instructions(draw: st.DrawFn, chunks: int, stages: int, pipelines: int, microbatches: int) -> Instruction:
    """One instruction that has the fields its opcode uses, with any values."""
    opcode = draw(st.sampled_from(Opcode))
    inbox = NUMBERS if opcode in RECEIVES else st.one_of(st.just(NONE), NUMBERS)
    return Instruction(
        opcode,
        draw(st.integers(0, chunks - 1)) if opcode in USES_CHUNK else NONE,
        draw(st.integers(0, pipelines - 1)) if opcode in USES_MICROBATCH else NONE,
        draw(st.integers(0, microbatches - 1)) if opcode in USES_MICROBATCH else NONE,
        draw(NUMBERS) if opcode in USES_BUFFER else NONE,
        draw(inbox) if opcode in RECEIVES | CONSUMES else NONE,
        draw(st.integers(0, stages * pipelines - 1)) if opcode in USES_NEIGHBOUR else NONE,
    )


def streams(
    chunks: int, stages: int, pipelines: int, microbatches: int
) -> st.SearchStrategy[list[Instruction]]:
    """Lists of them; few micro-batches make the same one come up again and again."""
    return st.lists(instructions(chunks, stages, pipelines, microbatches), max_size=60)
