"""Heartbeat of a worker process on its node's board, and the thread that writes it. No torch."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from recycle_runtime.protocol.heartbeat_board import Board, BoardLine
from recycle_runtime.protocol.surroundings import Machine, Surroundings

_EVERY = 0.1


class HeartbeatWriter:
    """One line of the board. The fields are set from several places, and written ten times a second."""

    def __init__(self, board: Board, number: int, surroundings: Surroundings | None = None) -> None:
        self._board, self._number = board, number
        self._around = surroundings or Machine()
        self.generation = 0
        self.step = 0
        self.position = 0
        self.is_waiting = False
        self.is_up = False
        self.is_first = True
        """Until a step has been made with the layers that the process has."""
        self.fault = 0
        self.device_waits: Callable[[], bool] = lambda: False
        """Asks if the device waits for other workers; the host may wait for the device meanwhile."""
        self._has_ended = False
        self.show()
        self._around.start(self._repeat, "heartbeat")

    def show(self) -> None:
        line = BoardLine(
            self._now(),
            self.generation,
            self.step,
            self.position,
            int(self.is_waiting or self.device_waits()),
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
        self.fault = self._now()
        self.show()

    def end(self) -> None:
        self._has_ended = True

    def _now(self) -> int:
        return int(self._around.now() * 1e9)

    async def _repeat(self) -> None:
        await self._around.sleep(_EVERY)
        while not self._has_ended:
            self.show()
            await self._around.sleep(_EVERY)
