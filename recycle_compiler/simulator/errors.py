"""Errors of streams that are run: a worker is blocked, or gets what is not meant for it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.kernel import COMPUTE, FREE, NEVER
from recycle_compiler.simulator.streams import EngineStreams
from recycle_compiler.simulator.wiring import Wiring
from recycle_runtime.plan.isa import Opcode

_NAMED = 8
"""Workers that a message names; the exception has them all."""


class StuckStreamsError(Exception):
    """Streams that cannot be run to their end as they are; a sentence says why."""


class WrongMessageError(StuckStreamsError):
    """An instruction gets, sends or works on something else than what its fields say."""


class Blocked(NamedTuple):
    """A worker that is blocked for good."""

    worker: Worker
    position: int
    """In its stream, from 0."""
    instruction: str
    """As text, as `recyclec show --format asm` writes it."""
    waits_for: str

    def __str__(self) -> str:
        instruction = " ".join(self.instruction.split())
        return f"{self.worker} at {self.position} ({instruction}) waits for {self.waits_for}"


class DeadlockError(StuckStreamsError):
    """No worker can go on. `blocked` has every worker that did not reach the end of its stream."""

    def __init__(self, blocked: tuple[Blocked, ...], iteration: int = 0) -> None:
        self.blocked = blocked
        self.iteration = iteration
        named = [str(each) for each in blocked[:_NAMED]]
        if len(blocked) > _NAMED:
            named.append(f"and {len(blocked) - _NAMED} more")
        super().__init__(f"deadlock in iteration {iteration}: {'; '.join(named)}")


_DOWN = (Opcode.SEND_ACTIVATION, Opcode.RECV_ACTIVATION, Opcode.FORWARD)
"""Opcodes that handle activations, not gradients."""
_AFTER = (
    (Opcode.SEND_ACTIVATION, (Opcode.FORWARD,)),
    (Opcode.SEND_GRADIENT, (Opcode.BACKWARD, Opcode.BACKWARD_INPUT)),
    (Opcode.BACKWARD, (Opcode.FORWARD,)),
    (Opcode.BACKWARD_INPUT, (Opcode.FORWARD,)),
    (Opcode.BACKWARD_WEIGHT, (Opcode.BACKWARD_INPUT,)),
)
"""Opcodes that work on a micro-batch only after one of these has, in the same stream."""


def check_labels(streams: EngineStreams, wiring: Wiring, job: JobSpec) -> None:
    """Raise WrongMessageError for the first thing that is wrong."""
    for what in _wrong(streams, wiring, job):
        raise WrongMessageError(what)


def _wrong(streams: EngineStreams, wiring: Wiring, job: JobSpec) -> Iterator[str]:
    unit = streams.pipeline * job.microbatches + streams.microbatch
    down = streams.is_any(_DOWN)
    steps = np.flatnonzero((wiring.kind == COMPUTE) & (wiring.source > FREE))
    receives = np.flatnonzero(wiring.send_of_receive > NEVER)
    taker = np.concatenate((wiring.row[steps], receives))
    giver = np.concatenate((wiring.row[wiring.source[steps]], wiring.send_of_receive[receives]))
    other = (unit[taker] != unit[giver]) | (down[taker] != down[giver])
    other |= streams.chunk[taker] != streams.chunk[giver] + np.where(down[giver], 1, -1)
    for here, there in zip(taker[other].tolist(), giver[other].tolist(), strict=True):
        yield f"{_at(streams, here)} gets what {_at(streams, there)} sends"
    for row in wiring.unreceived.tolist():
        yield f"{_at(streams, row)} sends what no worker receives"
    work = unit * job.chunks + streams.chunk
    for opcode, sooner in _AFTER:
        for row in _too_early(streams, work, np.flatnonzero(streams.opcode == opcode), sooner).tolist():
            names = " or ".join(each.name.lower().replace("_", "-") for each in sooner)
            yield f"{_at(streams, row)} has no {names} before it"


def _too_early(streams: EngineStreams, work: Column, rows: Column, sooner: tuple[Opcode, ...]) -> Column:
    """Rows of a micro-batch and chunk without an earlier row of these opcodes in the same stream."""
    makers = np.flatnonzero(streams.is_any(sooner))
    if not len(makers):
        return rows
    most = int(work.max(initial=0)) + 1
    worker = streams.worker
    keys = worker[makers] * most + work[makers]
    # Backwards, so that of several the first is the one that stays.
    keys, index = np.unique(keys[::-1], return_index=True)
    first = makers[len(makers) - 1 - index]
    wanted = worker[rows] * most + work[rows]
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return rows[(keys[place] != wanted) | (first[place] > rows)]


def _at(streams: EngineStreams, row: int) -> str:
    worker, position = streams.place(row)
    return f"{worker} at {position} ({' '.join(streams.text(row).split())})"
