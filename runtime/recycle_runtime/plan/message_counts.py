"""Number of messages of each neighbour that can wait at once, read off a stream. Standard library only."""

from collections.abc import Sequence

from recycle_runtime.plan.isa import CONSUMES, NONE, RECEIVES, Instruction
from recycle_runtime.plan.worker_ids import Worker, numbered_worker


def most_waiting(stream: Sequence[Instruction], pipelines: int) -> dict[Worker, int]:
    """For each neighbour: the most messages asked for and not yet used, at any time."""
    waiting: dict[Worker, int] = {}
    most: dict[Worker, int] = {}
    sender_of: dict[int, Worker] = {}
    for instruction in stream:
        if instruction.opcode in RECEIVES:
            sender = numbered_worker(instruction.neighbour, pipelines)
            sender_of[instruction.inbox] = sender
            waiting[sender] = waiting.get(sender, 0) + 1
            most[sender] = max(most.get(sender, 0), waiting[sender])
        elif instruction.opcode in CONSUMES and instruction.inbox != NONE:
            waiting[sender_of[instruction.inbox]] -= 1
    return most
