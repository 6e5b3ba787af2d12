"""Listener of a node's agent for its worker processes: a Unix socket in no file system.

Its name follows from the agent's folder, so that workers find the agent that comes after one that was killed.
Both ends look at the user of the other before they say anything, and prove the token then, as everywhere.
Nothing is encrypted: nobody stands between two processes of one machine. No torch.
"""

import hashlib
import os
import socket
import struct
from pathlib import Path
from typing import Final

from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.channel import PROVED_WITHIN, Channel
from recycle_runtime.protocol.codec import UnreachableError
from recycle_runtime.protocol.identity import node_number
from recycle_runtime.protocol.records import MOST_BYTES
from recycle_runtime.protocol.server import Connection, Served, Server

MOST_NEAR: Final = MOST_BYTES - (1 << 16)
"""Bytes of a message to an agent, which adds a few when it passes it on."""
AGENT_SECONDS: Final = 60.0
"""For an agent that looks for the coordinator, and answers nobody before it has found it; whoever waits
hears at once when it ends."""
_BACKLOG = 128
_CREDENTIALS = struct.Struct("@iii")


def near_name(state: Path) -> str:
    """Of the socket at which the agent with this folder listens."""
    of_folder = f"{node_number(state)} {state.absolute()}".encode(errors="surrogateescape")
    return f"recycle-{os.getuid()}-{hashlib.sha256(of_folder).hexdigest()[:32]}"


def serve_near(name: str, token: Token, served: Served) -> Server:
    """OSError if somebody listens there already."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(_abstract(name))
        listener.listen(_BACKLOG)
        descriptor = listener.detach()
    return Server("", 0, token, served, descriptor, admits=_is_own_user, most=MOST_NEAR)


def process_of(connection: Connection) -> int:
    """The process at the other end, by its number."""
    return _credentials(connection.socket)[0]


class NearChannel(Channel):
    """A worker process's end of a connection to its agent."""

    _can_encrypt = False

    def __init__(self, name: str, token: Token, timeout: float = PROVED_WITHIN) -> None:
        super().__init__(name, 0, token, timeout)

    def _reached(self, host: str, port: int, timeout: float) -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            found.settimeout(timeout)
            found.connect(_abstract(host))
            if _is_own_user(found):
                return found
            error = "another user listens there"
        except OSError as failure:
            error = str(failure)
        found.close()
        raise UnreachableError(f"no agent at {host}: {error}")


def _is_own_user(sock: socket.socket) -> bool:
    return _credentials(sock)[1] == os.getuid()


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, when the connection was made."""
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(said)
    return process, user


def _abstract(name: str) -> str:
    return f"\0{name}"
