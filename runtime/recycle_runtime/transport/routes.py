"""Pieces of tensors that go from one holder of a chunk to another: those on the same way are one message."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from recycle_runtime.transport.interface import PeerSum


class Route(NamedTuple):
    """Numbers that a holder has for another; all holders know of it."""

    source: int
    taker: int
    size: int
    given: torch.Tensor | None
    """At its source."""


class Routed(NamedTuple):
    """Sums to start, and places where pieces come."""

    copies: list[PeerSum]
    taken: dict[int, torch.Tensor]
    """By the place of a route among all: those that end here."""
    given: int
    """Bytes that leave here."""


def routed(routes: Sequence[Route], me: int, dtype: torch.dtype, device: torch.device) -> Routed:
    """One message for every two holders."""
    ways: dict[tuple[int, int], list[int]] = {}
    for place, route in enumerate(routes):
        ways.setdefault((route.source, route.taker), []).append(place)
    found, bytes_given = Routed([], {}, 0), 0
    for (source, taker), places in ways.items():
        sizes = [routes[place].size for place in places]
        is_here = me in (source, taker)
        memory = torch.empty(sum(sizes), dtype=dtype, device=device if is_here else "meta")
        if source == me:
            given = [each.reshape(-1) for place in places if (each := routes[place].given) is not None]
            torch.cat(given, out=memory)
            bytes_given += memory.nbytes
        elif taker == me:
            found.taken.update(zip(places, memory.split(sizes), strict=True))
        found.copies.append(PeerSum(memory, (source,), (taker,)))
    return found._replace(given=bytes_given)
