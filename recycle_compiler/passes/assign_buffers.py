"""Number the buffers and inboxes of every worker: memory is decided here, not discovered at run time.

    load p0 m0           -->    load p0 m0 b0
    forward p0 m0               forward p0 m0 b0 <- i2

A micro-batch keeps one buffer per chunk from its load or forward to the end of its backward; a message keeps
one inbox from the posting of its receive to the start of the op that consumes it. The lowest free number is
taken, so a worker needs no more of them than it ever uses at once: while none is free, the numbers in use
are the first ones.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.ir.ops import Column
from recycle_compiler.ir.streams import Streams
from recycle_compiler.passes.pipeline import Pass
from recycle_runtime.plan.isa import CONSUMES, NONE, RECEIVES, SERVES, USES_BUFFER, Opcode

_NOTHING, _TAKES, _GIVES, _FOLLOWS = range(4)
"""Actions on a number: none, take one unless there is one, give it back, come right after giving back."""
_FREES = frozenset(
    {Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT, Opcode.SERVE_BACKWARD, Opcode.SERVE_BACKWARD_WEIGHT}
)
_LARGE = 2_000
"""Instructions from which on it pays to load the compiler."""


@dataclass(frozen=True, slots=True)
class AssignBuffers(Pass[Streams, Streams]):
    """Fill in `buffer` and `inbox`."""

    name = "assign-buffers"

    def run(self, streams: Streams) -> Streams:
        buffer = _numbers(streams, {**dict.fromkeys(USES_BUFFER, _TAKES), **_LAST_USES})
        inbox = _numbers(streams, {**dict.fromkeys(RECEIVES, _TAKES), **dict.fromkeys(CONSUMES, _GIVES)})
        return replace(streams, buffer=buffer, inbox=inbox)


_LAST_USES = {
    **dict.fromkeys(_FREES, _GIVES),
    # Its backward may just have freed the buffer, and nothing takes a buffer between the two.
    Opcode.SEND_GRADIENT: _FOLLOWS,
}


def _numbers(streams: Streams, actions: dict[Opcode, int]) -> Column:
    """For every instruction the lowest number that was free when its micro-batch needed one."""
    job, size = streams.job, len(streams.opcode)
    units = job.pipelines * job.microbatches
    action_of = np.full(max(Opcode) + 1, _NOTHING)
    action_of[list(actions)] = list(actions.values())
    unit = streams.pipeline * job.microbatches + streams.microbatch
    served = _served(streams)
    keys = max(units, int(served.max(initial=NONE)) + 1) * 2 * job.chunks
    unit = np.where(served >= 0, 2 * served + 1, 2 * unit)
    columns = (
        streams.offsets,
        action_of[streams.opcode],
        unit * job.chunks + streams.chunk,
        np.full(keys, NONE),
        np.zeros(keys, dtype=np.int64),
        np.full(size, NONE),
    )
    if size >= _LARGE:
        _compiled()(*columns)
        return columns[-1]
    lists = [column.tolist() for column in columns]
    number_rows(*lists)
    return np.array(lists[-1], dtype=np.int64)


def _served(streams: Streams) -> Column:
    """Earlier services of a worker on a chunk, counted forward, back and for weights each: rounds of a chunk
    go back in the order in which they went forward. NONE for all else."""
    found = np.full(len(streams.opcode), NONE)
    rows = np.flatnonzero(np.isin(streams.opcode, sorted(SERVES)))
    if not len(rows):
        return found
    worker = np.searchsorted(streams.offsets, rows, side="right")
    size = max(Opcode) + 1
    line = (worker * streams.job.chunks + streams.chunk[rows]) * size + streams.opcode[rows]
    order = np.argsort(line, kind="stable")
    found[rows[order]] = np.arange(len(rows)) - np.searchsorted(line[order], line[order])
    return found


@cache
def _compiled() -> Any:
    return compile_function(number_rows)


def number_rows(offsets: Any, action: Any, key: Any, held: Any, used: Any, number: Any) -> None:
    """Fill `number`, stream by stream; `held[key]` is the number that a micro-batch has, -1 if it has none.

    Written so that numba can compile it; runs as plain Python on lists for small plans.
    """
    for stream in range(len(offsets) - 1):
        freed = -1
        for row in range(offsets[stream], offsets[stream + 1]):
            does = action[row]
            if does == _NOTHING:
                continue
            mine = held[key[row]]
            if mine < 0 and does == _TAKES:
                mine = 0
                while used[mine] > 0:
                    mine += 1
                used[mine] = 1
                held[key[row]] = mine
            elif mine < 0 and does == _FOLLOWS:
                mine = freed
            number[row] = mine
            if does == _GIVES and mine >= 0:
                freed = mine
                used[mine] = 0
                held[key[row]] = -1
