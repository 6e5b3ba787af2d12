"""Addresses at which processes of a gloo group listen, and a sentence about those that cannot be reached.

What gloo says itself when a connection is refused names neither the host nor the right port.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from recycle_runtime.protocol.address import port_range

_LENGTH = struct.Struct("@Q")
_FAMILY = struct.Struct("@H")
_PORT = struct.Struct(">H")
_PORT_AT = 2
_IPV4_AT, _IPV6_AT = 4, 8
_TRY_SECONDS = 1.0
_PATIENCE = 2.0
"""Seconds: whoever refuses may be on its way, and the next attempt of a group follows at once."""
_AGAIN_EVERY = 0.2


class Listener(NamedTuple):
    """As a process leaves it at the store."""

    host: str
    address: str
    port: int

    def __str__(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.host or 'a host without a name'} at {shown}:{self.port}"


def listener_of(data: bytes) -> Listener | None:
    """The name of the host and a socket address, each after its length; None if these are other bytes."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        host = data[_LENGTH.size : _LENGTH.size + length].decode()
        where = data[2 * _LENGTH.size + length :]
        (family,) = _FAMILY.unpack_from(where)
        (port,) = _PORT.unpack_from(where, _PORT_AT)
        if family == socket.AF_INET:
            return Listener(host, socket.inet_ntop(family, where[_IPV4_AT : _IPV4_AT + 4]), port)
        if family == socket.AF_INET6:
            return Listener(host, socket.inet_ntop(family, where[_IPV6_AT : _IPV6_AT + 16]), port)
    except (struct.error, ValueError, OverflowError):
        pass
    return None


def unreachable(listeners: Iterable[Listener]) -> str | None:
    """A sentence about one that refuses connections or does not answer, for a while; None if all accept."""
    give_up = time.monotonic() + _PATIENCE
    for listener in listeners:
        while (error := _error_at(listener)) is not None:
            if time.monotonic() > give_up:
                return _sentence(listener, error)
            time.sleep(_AGAIN_EVERY)
    return None


def _error_at(listener: Listener) -> OSError | None:
    try:
        socket.create_connection(listener[1:], _TRY_SECONDS).close()
    except OSError as error:
        return error
    return None


def read_listeners(values: Sequence[bytes]) -> list[Listener]:
    """Those that are written as this module knows it."""
    return [found for value in values if (found := listener_of(value)) is not None]


def _sentence(listener: Listener, error: OSError) -> str:
    why = "no answer" if isinstance(error, TimeoutError) else os.strerror(error.errno or 0).lower()
    found = port_range()
    ports = "" if found is None else f", {found[0]}-{found[1]} on this node"
    return (
        f"a worker on {listener} cannot be reached: {why}. Workers listen on ports that the system gives out "
        f"(net.ipv4.ip_local_port_range{ports}): the nodes of a job must let each other connect to these"
    )
