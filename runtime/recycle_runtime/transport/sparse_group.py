"""A gloo group in which each process connects only to those that it talks to.

Gloo can make connections when they are first used. A process then leaves one address of fixed size at the
store and reads those of the processes that it connects to, in place of a list of N addresses from each of N:

    group of N                      gloo's full mesh          here
    read by all, in addresses       N x N x N                 N x (log N + neighbours)
    sockets of a process            N                         log N + neighbours

All connections are made before the group is used: those of a ring, over which gloo sums; those of a barrier,
which asks processes 1, 2, 4, ... away; and those of the neighbours that are named. So whoever waits for one
of them waits on a socket that can be broken off, as it could not on one that is still to come.

The end with the lower address waits for the other to connect. All processes go through their connections in
one order, that of the distance between both ends and then of their place on the circle, so that few wait for
each other in a row.
"""

import os
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.transport.listeners import Listener, read_listeners, unreachable

_gloo: Any = dist.ProcessGroupGloo
_HELLO = 1
"""A tag: messages between workers have another."""
_CONNECTING = "connect"
"""In what gloo says when it could not connect."""
_INTERFACES = "GLOO_SOCKET_IFNAME"
_FIRST = "0"
"""The folder in which gloo's first context leaves addresses, by rank."""


def make_group(
    store: dist.Store, rank: int, size: int, timeout: timedelta, neighbours: Collection[int] = ()
) -> Any:
    """Group of all processes, once they are connected; neighbours are ranks, which name this one in turn."""
    devices = _devices()
    if devices is None:
        return _gloo(store, rank, size, timeout)
    options: Any = _gloo._Options()
    options._timeout, options._devices, options._threads = timeout, devices, 2 * len(devices)
    group: Any = _gloo(store, rank, size, options)
    others = met_by(rank, size, neighbours)
    listeners = _read_addresses(store, rank, others)
    hello, answers = torch.zeros(1), [torch.zeros(1) for _ in others]
    works: list[Any] = []
    try:
        for other, answer in zip(others, answers, strict=True):
            works += [group.send([hello], other, _HELLO), group.recv([answer], other, _HELLO)]
        for work in works:
            work.wait()
    except RuntimeError as error:
        if _CONNECTING in str(error) and (why := unreachable(listeners)) is not None:
            raise RuntimeError(why) from error
        raise
    return group


def met_by(rank: int, size: int, neighbours: Collection[int] = ()) -> list[int]:
    """Whom a process connects to, in turn."""
    others = _on_circle(rank, size) | (set(neighbours) - {rank})
    return sorted(others, key=lambda other: _order(rank, other, size))


def _devices() -> list[Any] | None:
    """Devices to listen on, whose connections are made when they are used; None if that cannot be had."""
    names = [name for name in os.environ.get(_INTERFACES, "").split(",") if name]
    if len(names) > 1:
        # Each has connections of its own, and which one is used is for gloo to know.
        return None
    try:
        if names:
            return [_gloo.create_device(interface=names[0], lazy_init=True)]
        return [_gloo.create_default_device(lazy_init=True)]
    except TypeError:
        # A torch that does not know of it.
        return None


def _on_circle(rank: int, size: int) -> set[int]:
    """Next to it, for sums, and 1, 2, 4, ... away, for barriers."""
    found: set[int] = set()
    distance = 1
    while distance < size:
        found |= {(rank + distance) % size, (rank - distance) % size}
        distance *= 2
    return found - {rank}


def _order(rank: int, other: int, size: int) -> tuple[int, int, int]:
    """The same for both ends of a connection, and different for all connections of a process."""
    first, last = sorted((rank, other))
    if 2 * (last - first) > size:
        first, last = last, first
    distance = (last - first) % size
    return distance, (first // distance) % 2, first


def _read_addresses(store: dist.Store, rank: int, others: list[int]) -> list[Listener]:
    """All at once, so that gloo need not ask for one after the other."""
    if not others or not store.check([f"{_FIRST}/{rank}"]):
        # This torch leaves them elsewhere, and asks for itself.
        return []
    return read_listeners(store.multi_get([f"{_FIRST}/{other}" for other in others]))
