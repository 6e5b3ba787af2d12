"""Clients that come while the coordinator cannot serve them yet, since it reads a checkpoint.

They prove themselves as ever, are let in and heard without an answer: they know that the coordinator is
there, however long it takes. When it is ready they are hung up on, come again at once and say again who they
are, as after any broken connection. Needs no torch.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.server import Connection, Served, Server

_TURN = 0.05


class StartupListener:
    """In place of who is served, until that one can be."""

    def message(self, connection: Connection, message: Message) -> None:
        """It is said again to the coordinator."""

    def closed(self, connection: Connection) -> None: ...

    def tick(self) -> None: ...


@contextmanager
def kept_waiting(serve: Callable[[Served], Server]) -> Generator[None]:
    """While this is open, on a thread: whoever comes waits there."""
    server, is_over = serve(StartupListener()), threading.Event()

    def turn() -> None:
        while not is_over.is_set():
            server.turn(_TURN)

    thread = threading.Thread(target=turn, name="startup-listener", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        server.close()
