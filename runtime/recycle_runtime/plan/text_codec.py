"""The texts of a bundle as bytes, and back. Standard library only; the same bytes on any machine."""

from functools import cache

from recycle_runtime.plan.range_coder import (
    EVEN,
    REGISTERS,
    code_symbol,
    ended_exactly,
    finish,
    start_decoding,
    start_encoding,
)

_DATA = REGISTERS + (1 << 16)
"""Each byte is coded under the one before it: 256 contexts for each of 256 bytes, then come the data."""


def encode_text(text: bytes) -> bytes:
    """Fewer bytes than the text has, unless it is very odd; `decode_text` is the inverse."""
    # No bit costs more than a byte.
    memory = [*_primed_memory(), *bytes(8 * len(text) + 1)]
    start_encoding(memory, _DATA, len(memory))
    _code_text(memory, bytearray(text))
    return bytes(memory[_DATA : finish(memory)])


def decode_text(data: bytes, length: int) -> bytes | None:
    """The `length` bytes of text that the data stand for; None when they do not stand for so many."""
    memory = [*_primed_memory(), *data]
    start_decoding(memory, _DATA, len(memory))
    text = bytearray(length)
    _code_text(memory, text)
    return bytes(text) if ended_exactly(memory) else None


def _code_text(memory: list[int], text: bytearray) -> None:
    previous = 0
    for place, byte in enumerate(text):
        previous = code_symbol(memory, REGISTERS + (previous << 8), 8, byte)
        text[place] = previous


@cache
def _primed_memory() -> tuple[int, ...]:
    memory = [0] * REGISTERS + [EVEN] * (1 << 16)
    start_encoding(memory, _DATA, _DATA)
    _code_text(memory, bytearray(_USUAL_TEXT))
    return tuple(memory)


# Part of the format. A bundle holds a job as its author wrote it, then as resolved.
_USUAL_TEXT = b"""\
# The job of a model.
job gpt {
  parallel { pipeline = 4  data = 3  tensor = 1 }
  batch    { microbatches = 6 }
  profile  {
    unit = slot
    forward = 1   backward_input = 1   backward_weight = 1
    optimizer = 3   reduce = 0   transfer = 0
    activation = 1
    kept_for_weight = 1
  }
  memory     { capacity = [4, 3, 2, 1] }
  techniques { adaptive  decouple  stagger }
  tolerate   { failures = 3 }
  solver     { time_limit = 60 s  gap = 1%  seed = 0 }
}
job gpt
shape stages 4 pipelines 3 tensor 1 microbatches 6
units slot count
forward 1000 1000 1000 1000
backward_input 1000 1000 1000 1000
backward_weight 1000 1000 1000 1000
optimizer 3000 3000 3000 3000
reduce 0 0 0 0
transfer 0 0 0
activation 1000 1000 1000 1000
kept_for_weight 1000 1000 1000 1000
capacity unlimited unlimited unlimited unlimited
parameters 0 0 0 0
techniques adaptive decouple stagger
failures 3
solver time_limit_ns 60000000000 gap_ppm 10000 seed 0
load of stage 0
"""
