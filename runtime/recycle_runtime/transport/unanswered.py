"""Which connections of this process to other workers get no answer any more. Standard library only.

Gloo waits for a message as long as it is told to, ten minutes here, whether the other host still answers or
not. The kernel knows better: it counts how often it has sent something again, or asked in vain.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.protocol.keepalive import ask_now_and_then

_ESTABLISHED, _CONNECTING, _LISTENING = 1, 2, 10
_MOST_SENT_AGAIN = 3
"""The fourth time comes three seconds after the first, each after twice the time."""
_MOST_ASKED = 2
_MOST_KNOCKS = 0
_ASK_TIMES = 60
_INFO = struct.Struct("@8B")


class Ends(NamedTuple):
    """Addresses of hosts."""

    here: frozenset[str]
    """Those of this process."""
    unanswered: frozenset[str]


def look(sockets: dict[int, int], except_port: int) -> Ends:
    """At sockets, descriptor to identity; those that go to this port, the coordinator's, are left out."""
    here: set[str] = set()
    silent: set[str] = set()
    knocking: set[int] = set()
    for descriptor, identity in sockets.items():
        try:
            copy = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            continue
        with copy, suppress(OSError):
            state, _, sent_again, asked, *_ = _INFO.unpack(
                copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            )
            if state == _CONNECTING and sent_again > _MOST_KNOCKS:
                knocking.add(identity)
            if state not in (_ESTABLISHED, _LISTENING):
                continue
            if state == _LISTENING:
                here.add(_plain(copy.getsockname()[0]))
                continue
            address, port = copy.getpeername()[:2]
            if port == except_port:
                continue
            here.add(_plain(copy.getsockname()[0]))
            if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
                ask_now_and_then(copy, every=1, times=_ASK_TIMES)
            if sent_again > _MOST_SENT_AGAIN or asked > _MOST_ASKED:
                silent.add(_plain(address))
    if knocking:
        silent |= _wanted(knocking, except_port)
    return Ends(frozenset(here), frozenset(silent - here))


def _wanted(identities: set[int], except_port: int) -> set[str]:
    """Where connections go that are not made yet; only the system's table says so."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/self/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[2].partition(":")
                if int(fields[9]) in identities and int(port, 16) != except_port:
                    found.add(_plain(_address(address)))
    return found


def _address(digits: str) -> str:
    """From the words of 32 bits that the system's table shows."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    data = b"".join(struct.pack("=I", word) for word in words)
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def _plain(address: str) -> str:
    return address.removeprefix("::ffff:")
