"""A policy whose machines never fail, whatever the trace says."""

from dataclasses import dataclass

from recycle_compiler.fleet.policy import Change, Reaction, Worker


@dataclass(slots=True)
class Unmoved:
    """One rate for ever."""

    name: str
    note: str
    rate: float

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        return self.rate

    def react(self, change: Change) -> Reaction:
        return Reaction(self.rate)
