"""What can be wrong with streams that are run: somebody waits for ever, or gets what is not meant for him."""

from typing import NamedTuple

from recycle_compiler.ir.failure import Worker

_NAMED = 8
"""Workers that a message names; the exception has them all."""


class StreamError(Exception):
    """Streams that cannot be run to their end as they are; a sentence says why."""


class WrongMessageError(StreamError):
    """An instruction gets, sends or works on something else than what its fields say."""


class Blocked(NamedTuple):
    """A worker that waits for ever."""

    worker: Worker
    position: int
    """In its stream, from 0."""
    instruction: str
    """In words, as `recyclec show --format asm` writes it."""
    waits_for: str

    def __str__(self) -> str:
        instruction = " ".join(self.instruction.split())
        return f"{self.worker} at {self.position} ({instruction}) waits for {self.waits_for}"


class DeadlockError(StreamError):
    """Nobody can go on. `blocked` has every worker that did not reach the end of its stream."""

    def __init__(self, blocked: tuple[Blocked, ...], iteration: int = 0) -> None:
        self.blocked = blocked
        self.iteration = iteration
        named = [str(each) for each in blocked[:_NAMED]]
        if len(blocked) > _NAMED:
            named.append(f"and {len(blocked) - _NAMED} more")
        super().__init__(f"deadlock in iteration {iteration}: {'; '.join(named)}")
