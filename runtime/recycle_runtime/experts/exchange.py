"""Exchange of rows of tokens with the peers that hold the experts that the rows are for."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor

from recycle_runtime.experts.placement import Placement

_meanwhile: ContextVar[Callable[[], None] | None] = ContextVar("work while rows travel", default=None)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Generator[None]:
    """Whatever rows travel in here, `work` is called once they are on their way."""
    token = _meanwhile.set(work)
    try:
        yield
    finally:
        _meanwhile.reset(token)


def work_meanwhile() -> None:
    """Rows have set out, and nobody waits for them yet."""
    work = _meanwhile.get()
    if work is not None:
        work()


class Exchange(Protocol):
    """The peers that share the experts of a layer. All of them call it equally often, in the same order, and
    the backward of every call likewise; who has no rows calls it with none."""

    @property
    def placement(self) -> Placement:
        """The expert in every slot of every peer; all peers have equally many slots."""
        ...

    @property
    def peer(self) -> int:
        """The number of this peer."""
        ...

    @property
    def here(self) -> tuple[int, ...]:
        """The expert in every slot that is computed here."""
        ...

    def exchange(self, rows: Tensor, counts: Tensor, arriving: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows for all peers, for rows from all peers.

        `rows`: those for peer 0, then those for peer 1, ... Rows beyond the sum of all counts go nowhere.
        `counts`: whole numbers on the device of rows, by peer, by part (a slot of that peer on the way there,
        a slot of this one on the way back); peers are sent all of theirs. `arriving`: what peers have for
        this one, in the same form, where that is known: then nothing is sent.

        The result has rows from peer 0, then from peer 1, ..., and `arriving`. Its backward takes gradients
        the other way round, whether anything needs them or not.
        """
        ...


class Alone:
    """One process that computes all slots of a placement: a reference for peers that share them."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.peer = 0
        self.here = placement.slots

    def exchange(self, rows: Tensor, counts: Tensor, arriving: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows stay where they are."""
        return rows, counts.reshape(1, -1) if arriving is None else arriving


def everything_here(experts: int) -> Alone:
    """Every expert once, in this process."""
    return Alone(Placement([range(experts)]))
