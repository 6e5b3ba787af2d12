"""An adaptive binary range coder whose functions both encode and decode. Standard library only.

Every `code_` function takes the value to encode and returns the value coded; a decoder passes anything
and uses what comes back. A model is therefore written once, and its two directions cannot disagree.

All state is in `memory`, one sequence of integers: registers, contexts, data. It is a list here, and a numpy
array when the compiler compiles these same functions for large bundles; a context or a byte is an index into
it. There are no floats, so the bytes are equal on any machine.
"""

LOW, HIGH, CODE, POSITION, END, ENCODING = range(6)
"""Registers: the interval of 32-bit numbers still possible, the number read, next byte, end, direction."""
REGISTERS = 6

EVEN = 32768 << 8
"""A context that knows nothing. Upper bits: the chance of a one in 65536; lower 8: how many bits it saw."""
LIKELY = 61440 << 8 | 2
"""A context that expects a one, 15 times in 16."""
RAREST = 256
"""No chance gets closer than this to 0 or 65536, so that a byte cannot stand for very many bits."""
MEMORY = 24
"""A context moves by 1/2, then 1/3, ... of its error, and never by less than 1/MEMORY."""

NUMBER_BITS = 20
NUMBER_CONTEXTS = 2 * NUMBER_BITS
LARGEST_NUMBER = (1 << NUMBER_BITS) - 1

WORD = 0xFFFFFFFF


def start_encoding(memory: list[int], start: int, end: int) -> None:
    """Write from `start` on; bytes that would lie beyond `end` are counted and lost."""
    memory[LOW] = 0
    memory[HIGH] = WORD
    memory[POSITION] = start
    memory[END] = end
    memory[ENCODING] = 1


def start_decoding(memory: list[int], start: int, end: int) -> None:
    """Read from `start` to `end`, as if zeros followed."""
    start_encoding(memory, start, end)
    memory[ENCODING] = 0
    memory[CODE] = 0
    for _ in range(4):
        move_byte(memory, 0)


def move_byte(memory: list[int], byte: int) -> None:
    """Write a byte that is settled, or read the next one."""
    position = memory[POSITION]
    is_inside = position < memory[END]
    if memory[ENCODING] == 0:
        memory[CODE] = (memory[CODE] << 8 & WORD) | (memory[position] if is_inside else 0)
    elif is_inside:
        memory[position] = byte
    memory[POSITION] = position + 1


def code_bit(memory: list[int], context: int, bit: int) -> int:
    """One bit, at the price that its context has learnt so far."""
    low = memory[LOW]
    high = memory[HIGH]
    chance = memory[context] >> 8
    seen = memory[context] & 255
    middle = low + ((high - low) * chance >> 16)
    if memory[ENCODING] == 0:
        bit = 1 if memory[CODE] <= middle else 0
    if bit == 1:
        high = middle
        chance += (65536 - RAREST - chance) // (seen + 2)
    else:
        low = middle + 1
        chance -= (chance - RAREST) // (seen + 2)
    memory[context] = chance << 8 | (seen + 1 if seen + 2 < MEMORY else seen)
    while (low ^ high) >> 24 == 0:
        move_byte(memory, high >> 24)
        low = low << 8 & WORD
        high = (high << 8 & WORD) | 255
    memory[LOW] = low
    memory[HIGH] = high
    return bit


def code_symbol(memory: list[int], context: int, bits: int, symbol: int) -> int:
    """A symbol of a fixed number of bits; uses 1 << bits contexts."""
    node = 1
    for shift in range(bits - 1, -1, -1):
        node = node * 2 + code_bit(memory, context + node, symbol >> shift & 1)
    return node - (1 << bits)


def code_number(memory: list[int], context: int, number: int) -> int:
    """A number, cheap when small; uses NUMBER_CONTEXTS contexts. A decoder may find a larger one."""
    more = number + 1
    length = 0
    while length < NUMBER_BITS and code_bit(memory, context + length, 1 if more >> (length + 1) else 0) == 1:
        length += 1
    value = 1
    for shift in range(length - 1, -1, -1):
        value = value * 2 + code_bit(memory, context + NUMBER_BITS + shift, more >> shift & 1)
    return value - 1


def finish(memory: list[int]) -> int:
    """End an encoding with the one byte that settles it; gives the position after it."""
    move_byte(memory, memory[HIGH] >> 24)
    return memory[POSITION]


def ended_exactly(memory: list[int]) -> bool:
    """Whether a decoding has used its data to the last byte and no further."""
    return memory[POSITION] - 3 == memory[END]
