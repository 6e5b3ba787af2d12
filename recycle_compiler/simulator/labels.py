"""Whether everybody gets, sends and works on what the fields of his instructions say."""

from collections.abc import Iterator

import numpy as np

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.errors import WrongMessageError
from recycle_compiler.simulator.kernel import COMPUTE, FREE, NEVER
from recycle_compiler.simulator.streams import Streams
from recycle_compiler.simulator.wiring import Wiring
from recycle_runtime.plan.isa import Opcode

_DOWN = (Opcode.SEND_ACTIVATION, Opcode.RECV_ACTIVATION, Opcode.FORWARD)
"""What has to do with activations, not gradients."""
_AFTER = (
    (Opcode.SEND_ACTIVATION, (Opcode.FORWARD,)),
    (Opcode.SEND_GRADIENT, (Opcode.BACKWARD, Opcode.BACKWARD_INPUT)),
    (Opcode.BACKWARD, (Opcode.FORWARD,)),
    (Opcode.BACKWARD_INPUT, (Opcode.FORWARD,)),
    (Opcode.BACKWARD_WEIGHT, (Opcode.BACKWARD_INPUT,)),
)
"""What works on a micro-batch only after one of these has, in the same stream."""


def check_labels(streams: Streams, wiring: Wiring, job: JobSpec) -> None:
    """Raise WrongMessageError for the first thing that is wrong."""
    for what in _wrong(streams, wiring, job):
        raise WrongMessageError(what)


def _wrong(streams: Streams, wiring: Wiring, job: JobSpec) -> Iterator[str]:
    unit = streams.pipeline * job.microbatches + streams.microbatch
    steps = np.flatnonzero((wiring.kind == COMPUTE) & (wiring.source > FREE))
    receives = np.flatnonzero(wiring.send_of_receive > NEVER)
    taker = np.concatenate((wiring.row[steps], receives))
    giver = np.concatenate((wiring.row[wiring.source[steps]], wiring.send_of_receive[receives]))
    other = (unit[taker] != unit[giver]) | (streams.is_any(_DOWN)[taker] != streams.is_any(_DOWN)[giver])
    for here, there in zip(taker[other].tolist(), giver[other].tolist(), strict=True):
        yield f"{_at(streams, here)} gets what {_at(streams, there)} sends"
    for row in wiring.unreceived.tolist():
        yield f"{_at(streams, row)} sends what nobody receives"
    for opcode, sooner in _AFTER:
        for row in _too_early(streams, unit, np.flatnonzero(streams.opcode == opcode), sooner).tolist():
            names = " or ".join(each.name.lower().replace("_", "-") for each in sooner)
            yield f"{_at(streams, row)} has no {names} before it"


def _too_early(streams: Streams, unit: Column, rows: Column, sooner: tuple[Opcode, ...]) -> Column:
    """Rows of a micro-batch without an earlier row of these opcodes in the same stream."""
    makers = np.flatnonzero(streams.is_any(sooner))
    if not len(makers):
        return rows
    units = int(unit.max(initial=0)) + 1
    worker = streams.worker
    keys = worker[makers] * units + unit[makers]
    # Backwards, so that of several the first is the one that stays.
    keys, index = np.unique(keys[::-1], return_index=True)
    first = makers[len(makers) - 1 - index]
    wanted = worker[rows] * units + unit[rows]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return rows[(keys[place] != wanted) | (first[place] > rows)]


def _at(streams: Streams, row: int) -> str:
    worker, position = streams.place(row)
    return f"{worker} at {position} ({' '.join(streams.text(row).split())})"
