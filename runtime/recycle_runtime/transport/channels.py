"""Which neighbours a worker sends to and receives from, in the order in which all workers join them.

To join takes both ends, and each waits for the other. All workers go through one and the same order, so the
channel that comes first among those not joined yet has both its ends there, and nobody waits for ever. Pairs
with the same distance between their pipelines, at every second boundary, have no worker in common: they come
next to each other in the order, and are joined at the same time. Standard library only.
"""

from collections.abc import Sequence
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.isa import Instruction, Opcode

_TO = {Opcode.SEND_ACTIVATION: 1, Opcode.SEND_GRADIENT: -1}
_FROM = {Opcode.RECV_ACTIVATION: -1, Opcode.RECV_GRADIENT: 1}


class Channel(NamedTuple):
    """One way between two workers."""

    sender: Worker
    receiver: Worker


def channels_of(stream: Sequence[Instruction], worker: Worker) -> list[Channel]:
    """Those that the worker's stream uses, and no others."""
    found: set[Channel] = set()
    stage = worker[1]
    for instruction in stream:
        if instruction.opcode in _TO:
            found.add(Channel(worker, (instruction.peer, stage + _TO[instruction.opcode])))
        elif instruction.opcode in _FROM:
            found.add(Channel((instruction.peer, stage + _FROM[instruction.opcode]), worker))
    return sorted(found, key=joining_order)


def joining_order(channel: Channel) -> tuple[int, int, int, int, bool]:
    """Different for every channel, and the same on every worker."""
    down = channel.sender[1] < channel.receiver[1]
    upper, lower = channel if down else (channel.receiver, channel.sender)
    return upper[1] % 2, lower[0] - upper[0], upper[1], upper[0], down
