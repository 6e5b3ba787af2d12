"""Peers that share experts, as threads of one process."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from recycle_runtime.experts.placement import Placement

_Made = TypeVar("_Made")


class Meeting:
    """A place where threads put what they have for each other."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.calls = [0] * len(placement.peers)
        """Exchanges that each peer has taken part in, backward ones too."""
        self._barrier = threading.Barrier(len(placement.peers), timeout=60)
        self._given: list[Any] = [None] * len(placement.peers)

    def all_to_all(self, peer: int, given: Sequence[Tensor]) -> list[Tensor]:
        """By peer what is given to it, for what each has given to this one."""
        self.calls[peer] += 1
        self._given[peer] = [each.detach().clone() for each in given]
        self._barrier.wait()
        taken = [each[peer] for each in self._given]
        self._barrier.wait()
        return taken

    def abort(self) -> None:
        self._barrier.abort()


class ThreadExchange:
    """The exchange of one peer."""

    def __init__(self, meeting: Meeting, peer: int) -> None:
        self.placement, self.peer, self._meeting = meeting.placement, peer, meeting
        self.here = meeting.placement.peers[peer]

    def exchange(self, rows: Tensor, counts: Tensor, arriving: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if arriving is None:
            arriving = torch.stack(self._meeting.all_to_all(self.peer, list(counts)))
        sent, taken = counts.sum(1).tolist(), arriving.sum(1).tolist()
        return _Exchanged.apply(rows, self, sent, taken), arriving

    def swap(self, rows: Tensor, sizes: list[int]) -> Tensor:
        given = rows[: sum(sizes)].split(sizes)
        return torch.cat(self._meeting.all_to_all(self.peer, given))


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, owner: ThreadExchange, sent: list[int], taken: list[int]) -> Tensor:
        ctx.back = owner, sent, taken, len(rows)
        return owner.swap(rows, sent)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        owner, sent, taken, rows = ctx.back
        made = owner.swap(gradients[0], taken)
        assert len(made) == sum(sent)
        return torch.cat([made, made.new_zeros(rows - len(made), made.shape[1])]), None, None, None


def together(meeting: Meeting, work: Callable[[int], _Made]) -> list[_Made]:
    """Results of all peers, each in a thread of its own; the first error is raised."""
    made: list[Any] = [None] * len(meeting.placement.peers)
    errors: list[BaseException] = []

    def run(peer: int) -> None:
        try:
            made[peer] = work(peer)
        except BaseException as error:
            errors.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(peer,)) for peer in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return made
