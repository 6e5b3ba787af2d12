"""Connections that notice when the other end has vanished without a word. Standard library only.

A host that loses power or its cable closes nothing. Left alone, TCP waits a quarter of an hour for the answer
to what was sent, and for ever if nothing was.
"""

import socket

VANISHED_AFTER = 10.0
"""Seconds without an answer after which a client gives its connection up."""


def ask_now_and_then(sock: socket.socket, every: int = 2, times: int = 5) -> None:
    """Whether the other host still answers, while there is nothing to say."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, every)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, every)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, times)


def give_up_in_time(sock: socket.socket, seconds: float = VANISHED_AFTER) -> None:
    """Also when something was said, and no answer came."""
    ask_now_and_then(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
