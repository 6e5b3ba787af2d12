"""What workers say about a step, put together. Standard library only."""

from typing import NamedTuple

from recycle_runtime.coordinator.decision import Member


class Row(NamedTuple):
    """A step of the whole job."""

    step: int
    loss: float
    seconds: float
    """Of the worker that took longest."""
    live: int
    """Workers."""
    plan: str
    """Losses on each stage, as its plan has them."""


class StepRows:
    """Rows come out in order, each once, when everybody in the generation has spoken."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        """The first step whose row is not complete."""
        self._said: dict[int, dict[Member, tuple[float | None, float]]] = {}
        self._members: frozenset[Member] = frozenset()
        self._live, self._plan = 0, ""

    def begin(self, step: int, members: frozenset[Member], live: int, plan: str) -> None:
        """A new generation: what was said about its first step and later ones is void."""
        self._said = {number: rows for number, rows in self._said.items() if number < step}
        self._members, self._live, self._plan = members, live, plan

    def add(self, member: Member, step: int, loss: float | None, seconds: float) -> list[Row]:
        """Rows that are complete now."""
        if step >= self.next and member in self._members:
            self._said.setdefault(step, {})[member] = (loss, seconds)
        rows: list[Row] = []
        while self._members and self._members <= self._said.get(self.next, {}).keys():
            said = self._said.pop(self.next)
            losses = [said[member][0] or 0.0 for member in sorted(self._members) if member.part == 0]
            slowest = max(seconds for _, seconds in said.values())
            rows.append(Row(self.next, sum(losses), slowest, self._live, self._plan))
            self.next += 1
        return rows
