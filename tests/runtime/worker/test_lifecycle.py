"""A worker process has one line to the coordinator, whichever of its threads needs it first."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.worker import lifecycle
from recycle_runtime.worker.lifecycle import Life

THREADS = 4


def test_engine_and_script_join_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    together = threading.Barrier(THREADS)

    class Process:
        def __init__(self, *_: Any) -> None:
            made.append(self)
            self.link = SimpleNamespace(on_stuck=None, said=list[Any]())
            self.link.say = self.link.said.append

        async def join(self) -> None:
            """As long as others need to come here too."""
            threading.Event().wait(0.05)

    monkeypatch.setattr(lifecycle, "WorkerProcess", Process)
    monkeypatch.setattr(lifecycle.Bundle, "read", lambda path: SimpleNamespace(tensor=1))  # pyright: ignore
    options: Any = SimpleNamespace(bundle="none.plan", device="cpu", ranks=0)
    life = Life(options, (0, 0), 0, 0, Board(tmp_path / "board", 1))

    def fail() -> None:
        together.wait()
        assert life.fail("no good") == 1

    threads = [threading.Thread(target=fail) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (process,) = made
    assert len(process.link.said) == THREADS
