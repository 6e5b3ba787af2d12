"""Processes that have ended, and those that hang: with real ones."""

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from recycle_runtime.agent.process_signs import Signs, exit_of
from recycle_runtime.agent.watch import Ended, Process, ProcessWatch, WatchClock, WatchLimits
from recycle_runtime.program.user_frames import user_frames
from recycle_runtime.protocol.heartbeat_board import Board, BoardLine


class Node:
    """A board, a watch, and children that do as they are told."""

    def __init__(self, folder: Path, limits: WatchLimits) -> None:
        self.board = Board(folder / "board", 4)
        self.watch = ProcessWatch(self.board, limits)
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
        self.board.write(line, BoardLine(**({"is_waiting": 0, "is_up": 1, "fault_at": 0} | shown)))

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
    found = Node(tmp_path, WatchLimits(heartbeat=0.5, first_heartbeat=1.0, instruction=0.5, first_step=60.0))
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
    node.show(0, is_up=0, is_first=1)
    assert "no heartbeat" in node.wait_for_end().how


def test_one_that_is_stopped(node: Node) -> None:
    pid = node.start(0, sleep)
    node.show(0)
    os.kill(pid, signal.SIGSTOP)
    ended = node.wait_for_end()
    assert ended.how.startswith("was stopped for ")
    assert ended.stuck_in is None


def test_one_that_is_stuck(node: Node) -> None:
    def send_heartbeats() -> None:
        while True:
            node.show(0, position=17)
            time.sleep(0.02)

    node.start(0, send_heartbeats)
    ended = node.wait_for_end()
    assert ended.how.startswith("was stuck in instruction 17 of step 1 for ")
    assert ended.stuck_in == 1


def test_where_one_is_stuck(node: Node) -> None:
    """It says so itself, and needs no other thread of its own for that."""

    def hold_the_interpreter() -> None:
        dump = open(node.board.dump_path(0), "a")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR2, dump)
        node.show(0, step=4)
        ctypes.PyDLL(None).sleep(60)

    node.start(0, hold_the_interpreter)
    ended = node.wait_for_end()
    assert ended.how.startswith("had no heartbeat for ")
    assert ended.stuck_in == 4
    file, _, function = user_frames(ended.frames)[-1]
    assert (file, function) == (__file__, "hold_the_interpreter")


def test_a_busy_one_without_heartbeats_is_left_alone(node: Node) -> None:
    """As in a long call that holds the interpreter lock."""

    def count() -> None:
        node.show(0, is_first=1)
        until = time.process_time() + 2.0
        while time.process_time() < until:
            sum(range(100_000))

    node.start(0, count)
    assert node.wait_for_end().how == "ended with status 0"


def test_its_first_step_may_take_longer(node: Node) -> None:
    def send_heartbeats() -> None:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            node.show(0, is_first=1)
            time.sleep(0.02)

    node.start(0, send_heartbeats)
    assert node.wait_for_end().how == "ended with status 0"


class Told:
    """A watch with a clock and a kernel that say what a test wants."""

    def __init__(self, folder: Path, instruction: float = 100.0) -> None:
        self.real, self.signs = 0.0, Signs(is_stopped=False, is_busy=False, processor=1.0)
        self.board = Board(folder / "board", 1)
        limits = WatchLimits(heartbeat=1.0, instruction=instruction)
        self.watch = ProcessWatch(self.board, limits, WatchClock(lambda: self.real), lambda _: self.signs)
        self.watch.processes[0] = Process(0, -1, 0)
        self.killed: list[str] = []
        self.watch.kill = lambda line, why: self.killed.append(why)
        self.beats = 0

    def look(self, seconds: float, *, beats: bool = False, position: int = 0) -> None:
        """Ten times a second for so long."""
        for _ in range(round(seconds * 10)):
            self.beats += beats
            self.board.write(0, BoardLine(1 + self.beats, 1, 0, position, 0, 1, 0))
            self.real += 0.1
            self.watch.look()


def test_nobody_is_late_when_all_were_stopped(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.look(1.0, beats=True)
    told.real += 3600.0
    told.look(0.2)
    told.look(1.0, beats=True)
    assert not told.killed
    told.look(6.0)
    assert told.killed


def test_a_pause_that_was_seen_is_allowed_for(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.look(1.0, beats=True)
    told.signs = told.signs._replace(is_busy=True)
    told.look(3.0)
    told.look(1.0, beats=True)
    told.signs = told.signs._replace(is_busy=False)
    told.look(4.0)
    told.look(1.0, beats=True)
    assert not told.killed
    told.look(12.0)
    assert told.killed[0].startswith("had no heartbeat for ")


def test_threads_that_wait_for_the_interpreter_are_no_sign_of_life(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.look(1.0, beats=True)
    for turn in range(40):
        told.signs = Signs(is_stopped=False, is_busy=turn % 2 == 0, processor=1.0 + turn / 1000)
        told.look(0.1)
    assert told.killed


def test_an_instruction_may_take_ten_times_the_longest(tmp_path: Path) -> None:
    told = Told(tmp_path, instruction=10.0)
    told.look(3.0, beats=True, position=1)
    told.look(20.0, beats=True, position=2)
    assert not told.killed
    told.look(20.0, beats=True, position=2)
    assert told.killed[0].startswith("was stuck in instruction 2 of step 0 for ")


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
    line = BoardLine(1, 2, 3, 4, 1, 1, 7)
    first.write(2, line)
    assert second.read(2) == line
    assert second.read(1) == BoardLine(0, 0, 0, 0, 0, 0, 0)
    second.clear(2)
    assert first.read(2).heartbeat == 0
    first.close()
    second.close()


def test_a_process_that_is_taken_apart_counts_as_ended_once(tmp_path: Path) -> None:
    ending: dict[int, str] = {}
    node = Node(tmp_path, WatchLimits())
    node.watch = ProcessWatch(node.board, WatchLimits(), exit_of=ending.get)
    try:
        pid = node.start(0, lambda: time.sleep(60))
        descriptor = node.watch.processes[0].descriptor
        assert node.watch.ended(set()) == []
        ending[pid] = "was killed by signal 9"
        assert [(each.line, each.how) for each in node.watch.ended(set())] == [(0, "was killed by signal 9")]
        assert node.watch.descriptors == [descriptor]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert node.watch.ended({descriptor}) == []
        assert node.watch.descriptors == []
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)
    finally:
        node.end()


def test_the_kernel_says_how_a_process_ends() -> None:
    """A zombie is as far as any."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    assert exit_of(pid) is None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert exit_of(pid) == "was killed by signal 9"
    os.waitpid(pid, 0)
    assert exit_of(pid) is None
