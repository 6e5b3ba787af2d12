"""What a worker process shows on its node's board, and the thread that shows it. Standard library only."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from recycle_runtime.protocol.heartbeat_board import Board, Line

_EVERY = 0.1


class Heartbeat:
    """One line of the board. The fields are set from several places, and written ten times a second."""

    def __init__(self, board: Board, number: int) -> None:
        self._board, self._number = board, number
        self.generation = 0
        self.step = 0
        self.position = 0
        self.is_waiting = False
        self.is_up = False
        self.is_first = True
        """Until a step has been made with the layers that the process has."""
        self.fault = 0
        self._ended = threading.Event()
        self.show()
        threading.Thread(target=self._repeat, name="heartbeat", daemon=True).start()

    def show(self) -> None:
        line = Line(
            time.monotonic_ns(),
            self.generation,
            self.step,
            self.position,
            int(self.is_waiting),
            int(self.is_up),
            self.fault,
            int(self.is_first),
        )
        self._board.write(self._number, line)

    @contextmanager
    def waiting(self) -> Generator[None]:
        """While it waits for the coordinator it does not hang."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    def mark_fault(self) -> None:
        """A fault is injected now: the last thing before it happens."""
        self.fault = time.monotonic_ns()
        self.show()

    def end(self) -> None:
        self._ended.set()

    def _repeat(self) -> None:
        while not self._ended.wait(_EVERY):
            self.show()
