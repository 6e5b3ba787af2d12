"""Which processes have ended, and which hang: with real ones."""

import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from recycle_runtime.agent.watch import Ended, Limits, Watch
from recycle_runtime.protocol.heartbeat_board import Board, Line


class Node:
    """A board, a watch, and children that do as they are told."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.board = Board(folder / "board", 4)
        self.watch = Watch(self.board, limits)
        self.pids: list[int] = []

    def start(self, line: int, life: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                life()
            finally:
                os._exit(0)
        self.pids.append(pid)
        self.watch.add(line, pid)
        return pid

    def wait_for_end(self) -> Ended:
        """Look, as an agent does, until a process has ended."""
        for _ in range(2000):
            self.watch.look()
            descriptors = {process.descriptor for process in self.watch.processes.values()}
            for pid in self.pids:
                # Zombies count as ended here, as their descriptors do.
                try:
                    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                except FileNotFoundError:
                    state = "Z"
                if state == "Z":
                    ready = {p.descriptor for p in self.watch.processes.values() if p.pid == pid}
                    if found := self.watch.ended(ready & descriptors):
                        return found[0]
            time.sleep(0.01)
        raise AssertionError("nothing has ended")

    def show(self, line: int, **fields: int) -> None:
        shown = {"heartbeat": time.monotonic_ns(), "generation": 1, "step": 1, "position": 1} | fields
        self.board.write(line, Line(**({"is_waiting": 0, "is_up": 1, "fault_at": 0} | shown)))

    def end(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue
        for process in self.watch.processes.values():
            os.close(process.descriptor)
        self.board.close()


@pytest.fixture
def node(tmp_path: Path) -> Generator[Node]:
    found = Node(tmp_path, Limits(heartbeat=0.5, first_heartbeat=1.0, instruction=0.5))
    yield found
    found.end()


def sleep() -> None:
    time.sleep(60)


def test_a_status(node: Node) -> None:
    node.start(0, lambda: os._exit(7))
    assert node.wait_for_end() == Ended(0, node.pids[0], "ended with status 7", 0)


def test_a_signal(node: Node) -> None:
    node.start(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert node.wait_for_end().how == "was killed by signal 9"


def test_a_fault_is_told(node: Node) -> None:
    node.show(0, fault_at=123)
    node.start(0, lambda: None)
    assert node.wait_for_end().fault_at == 123


def test_one_without_any_heartbeat_is_left_alone(node: Node) -> None:
    """It may be busy with its start; its agent has no clock for it yet."""
    node.start(0, sleep)
    for _ in range(20):
        node.watch.look()
    assert 0 in node.watch.processes
    assert node.watch.ended(set()) == []


def test_one_whose_heartbeats_end_before_its_first_generation(node: Node) -> None:
    node.start(0, sleep)
    node.show(0, is_up=0)
    assert "no heartbeat" in node.wait_for_end().how


def test_one_that_is_stopped(node: Node) -> None:
    pid = node.start(0, sleep)
    node.show(0)
    os.kill(pid, signal.SIGSTOP)
    assert "no heartbeat" in node.wait_for_end().how


def test_one_that_is_stuck(node: Node) -> None:
    def send_heartbeats() -> None:
        while True:
            node.show(0, position=17)
            time.sleep(0.02)

    node.start(0, send_heartbeats)
    assert node.wait_for_end().how == "was stuck at instruction 17 and was killed"


def test_one_that_waits_is_not_stuck(node: Node) -> None:
    def send_heartbeats() -> None:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            node.show(0, is_waiting=1)
            time.sleep(0.02)

    node.start(0, send_heartbeats)
    assert node.wait_for_end().how == "ended with status 0"


def test_one_that_was_taken_out(node: Node) -> None:
    node.start(1, sleep)
    node.watch.kill(1, "was taken out")
    node.watch.kill(1, "again")
    assert node.wait_for_end() == Ended(1, node.pids[0], "was taken out", 0)
    node.watch.kill(1, "gone")


def test_one_that_has_ended_before_anybody_looked(node: Node) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    node.watch.add(0, pid)
    assert [ended.pid for ended in node.watch.ended(set())] == [pid]


def test_a_board_is_shared(tmp_path: Path) -> None:
    first, second = Board(tmp_path / "board", 3), Board(tmp_path / "board", 3)
    line = Line(1, 2, 3, 4, 1, 1, 7)
    first.write(2, line)
    assert second.read(2) == line
    assert second.read(1) == Line(0, 0, 0, 0, 0, 0, 0)
    second.clear(2)
    assert first.read(2).heartbeat == 0
    first.close()
    second.close()
