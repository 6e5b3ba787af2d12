"""Instruction set of workers. Standard library only.

A stream is the list of instructions of one worker for one iteration. Sends and receives are posts:
they return at once, and the compute instruction that consumes a message waits for it. On every
ordered pair of workers, receives stand in the order of the sends. Opcode numbers are append-only.
"""

from enum import IntEnum
from typing import NamedTuple


class Opcode(IntEnum):
    """One kind of instruction; the number is part of the bundle format and never changes."""

    LOAD = 1
    """Read the micro-batch (input for the first chunk, target for the last) into a buffer."""
    RECV_ACTIVATION = 2
    """Post the receive of an activation of the previous chunk into an inbox."""
    FORWARD = 3
    """Wait for the inbox (none for the first chunk), run forward, keep what backward needs in the buffer."""
    SEND_ACTIVATION = 4
    """Post the send of the buffer's output to the worker that runs the next chunk."""
    RECV_GRADIENT = 5
    """Post the receive of an output gradient of the next chunk into an inbox."""
    BACKWARD = 6
    """Wait for the inbox (none for the last chunk), run the whole backward, free the buffer."""
    BACKWARD_INPUT = 7
    """Wait for the inbox (none for the last chunk), compute the gradient of the input."""
    BACKWARD_WEIGHT = 8
    """Compute the gradient of the weights, free the buffer."""
    SEND_GRADIENT = 9
    """Post the send of the buffer's input gradient to the worker that runs the previous chunk."""
    BARRIER = 10
    """Wait until every worker is here."""
    REDUCE = 11
    """Sum the gradients of a chunk over all live workers that hold it; where the optimizer's state is
    sharded, each shard for its owners."""
    OPTIMIZER = 12
    """Step the optimizer of a chunk."""
    VALIDATE = 13
    """Compare with the gradient norm of all chunks; undo and redo the step when it must be."""
    GATHER = 14
    """Send the weights of a chunk from the owners of their shards to all live workers that hold it."""
    SERVE_FORWARD = 15
    """Take part in a forward of the chunk's holders without a micro-batch: compute with the experts here what
    the others send, keep what backward needs in the buffer."""
    SERVE_BACKWARD = 16
    """Take part in the whole backward of what was served, free the buffer."""
    SERVE_BACKWARD_INPUT = 17
    """Take part in the backward of what was served, as far as others wait for it."""
    SERVE_BACKWARD_WEIGHT = 18
    """Compute the gradients of the experts' weights of what was served, free the buffer."""


NONE = -1
"""Fills a field that an opcode does not use."""


class Instruction(NamedTuple):
    """One step of a stream. A field that the opcode does not use is NONE."""

    opcode: Opcode
    chunk: int = NONE
    """Range of layers that it works on, or sends or receives for."""
    pipeline: int = NONE
    """The pipeline that the micro-batch belongs to, wherever it runs."""
    microbatch: int = NONE
    buffer: int = NONE
    """Holds one micro-batch's activation from forward to the end of backward."""
    inbox: int = NONE
    """Holds one received message until the compute instruction that consumes it starts."""
    neighbour: int = NONE
    """The number of the worker at the other end of a message; it may be the worker itself."""


USES_CHUNK = frozenset(Opcode) - {Opcode.BARRIER, Opcode.VALIDATE}
"""Other opcodes stand once per worker, however many chunks it holds."""
SERVES = frozenset(
    {
        Opcode.SERVE_FORWARD,
        Opcode.SERVE_BACKWARD,
        Opcode.SERVE_BACKWARD_INPUT,
        Opcode.SERVE_BACKWARD_WEIGHT,
    }
)
USES_MICROBATCH = frozenset(Opcode) - {
    *SERVES,
    Opcode.BARRIER,
    Opcode.REDUCE,
    Opcode.OPTIMIZER,
    Opcode.GATHER,
    Opcode.VALIDATE,
}
USES_BUFFER = frozenset(
    {
        Opcode.LOAD,
        Opcode.FORWARD,
        Opcode.SEND_ACTIVATION,
        Opcode.BACKWARD,
        Opcode.BACKWARD_INPUT,
        Opcode.BACKWARD_WEIGHT,
        Opcode.SEND_GRADIENT,
        *SERVES,
    }
)
USES_NEIGHBOUR = frozenset(
    {Opcode.SEND_ACTIVATION, Opcode.SEND_GRADIENT, Opcode.RECV_ACTIVATION, Opcode.RECV_GRADIENT}
)
RECEIVES = frozenset({Opcode.RECV_ACTIVATION, Opcode.RECV_GRADIENT})
CONSUMES = frozenset({Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT})
"""These take an inbox, unless the chunk is the first (FORWARD) or the last (backwards)."""
