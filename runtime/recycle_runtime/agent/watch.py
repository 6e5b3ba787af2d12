"""Watch over the processes of a node: which have ended, and which hang. No torch.

The end of a process is seen through its pidfd, so a restarted agent can watch processes that are not
its children. A process hangs when its heartbeat stops and the kernel says that it is not busy either, or
when it has been in the same instruction for very long without waiting for another worker. It is asked where
it is, then killed, and its end is reported like any other.

Time counts only while this process runs too: after all of them were stopped together, or on a machine that
lets none of them run, nobody is late.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from recycle_runtime.agent.process_signs import Signs
from recycle_runtime.agent.processes import KernelProcesses, Processes
from recycle_runtime.program.user_frames import dumped_frames
from recycle_runtime.protocol.heartbeat_board import Board, BoardLine

LONGEST_TURN = 0.5
"""Seconds that one look can count, however long ago the last one was."""
_WITHOUT_DOUBT = 0.3
"""Seconds without a heartbeat before the kernel is asked."""
_LEAST_PROCESSOR = 0.1
"""Seconds of processor time that show life. Threads that wait for the interpreter lock use far less."""
_LEAST_BUSY = 3
"""Looks in a row that find a thread ready to run: one alone may have woken up for a moment."""
_PAUSES = 2.0
_MOST_PAUSES = 8.0
"""A heartbeat may stop for so many times the longest pause seen, and so many times the limit at most."""
_INSTRUCTIONS = 10.0
"""An instruction may take so many times the longest one seen."""
_DUMP_SECONDS = 2.0
"""Seconds that a process has for dumping its stack before it is killed."""


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Seconds after which a process counts as hung."""

    heartbeat: float = 1.5
    """Without a heartbeat or another sign of life, once it trains."""
    first_heartbeat: float = 120.0
    """The same before that."""
    instruction: float = 60.0
    """In one instruction, without waiting for another worker."""
    first_step: float = 1800.0
    """The same while the process builds its layers and makes its first step, in which code is compiled."""


class Process(NamedTuple):
    """One that is watched."""

    pid: int
    descriptor: int
    line: int


class Ended(NamedTuple):
    """A process that is gone."""

    line: int
    pid: int
    how: str
    fault_at: int
    """Time at which it injected a fault into itself, in nanoseconds; or 0."""
    stuck_in: int | None = None
    """The step in which its own work did not come to an end."""
    frames: tuple[tuple[str, int, str], ...] = ()
    """Stack of the process, the innermost call last: file, line, function."""


class WatchClock:
    """Seconds in which this process could look; a stop of all processes counts for nothing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._real, self._last, self.now = now, now(), 0.0

    def turn(self) -> float:
        real = self._real()
        self.now += min(real - self._last, LONGEST_TURN)
        self._last = real
        return self.now


@dataclass(slots=True)
class _Life:
    """State of a watched process; times are the clock's."""

    heartbeat: int = 0
    heard: float = 0.0
    """Time of the last new heartbeat."""
    alive: float = 0.0
    """Time of the last sign of life of any kind."""
    processor: float = 0.0
    """Seconds of processor time it had used by then."""
    busy: int = 0
    """Looks in a row that found it busy."""
    at: tuple[int, int, int] = (0, 0, 0)
    since: float = 0.0
    """Time at which it reached its instruction, or last waited in it."""


@dataclass(slots=True)
class _Accused:
    """A process that hangs, and has been asked where it is."""

    how: str
    asked: float
    step: int | None
    length: int = -1
    """Of its answer, as last seen."""


class ProcessWatch:
    """The processes of a node, by their line on the board."""

    def __init__(
        self,
        board: Board,
        limits: WatchLimits,
        clock: WatchClock | None = None,
        signs: Callable[[int], Signs | None] | None = None,
        processes: Processes | None = None,
        exit_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """`exit_of` says how a process is ending that has not ended yet, if that is end enough."""
        self._board, self._limits, self._exit_of = board, limits, exit_of
        self._kernel = processes or KernelProcesses()
        self._signs = signs or self._kernel.signs
        self._clock = clock or WatchClock()
        self.processes: dict[int, Process] = {}
        self._ending: list[Process] = []
        """Those that count as ended, and are still being taken apart."""
        self._why: dict[int, str] = {}
        self._lives: dict[int, _Life] = {}
        self._accused: dict[int, _Accused] = {}
        self._longest_pause = self._longest_instruction = 0.0

    def add(self, line: int, pid: int) -> None:
        """Watch a process; one that has ended already is seen at the next look."""
        try:
            descriptor = self._kernel.open(pid)
        except ProcessLookupError:
            descriptor = -1
        self.processes[line] = Process(pid, descriptor, line)
        for known in (self._why, self._lives, self._accused):
            known.pop(line, None)

    def kill(self, line: int, why: str) -> None:
        """So that it cannot come back half alive."""
        self._why.setdefault(line, why)
        self._signal(line, signal.SIGKILL)

    def ended(self, ready: set[int]) -> list[Ended]:
        """Of the processes whose descriptors can be read, or never could."""
        found: list[Ended] = []
        for process in [each for each in self._ending if each.descriptor in ready]:
            self._ending.remove(process)
            self._let_go(process)
        for line, process in list(self.processes.items()):
            is_gone = process.descriptor < 0 or process.descriptor in ready
            ending = None if is_gone else self._exit_of(process.pid)
            if not is_gone and ending is None:
                continue
            del self.processes[line]
            how = self._why.pop(line, "") or ending or self._kernel.how(process.pid)
            if not is_gone:
                self._ending.append(process)
            elif process.descriptor >= 0:
                self._let_go(process)
            fault_at, accused = self._board.read(line).fault_at, self._accused.pop(line, None)
            ended = Ended(line, process.pid, how, fault_at)
            if accused is not None and accused.how == how:
                frames = dumped_frames(self._board.dump(line))
                ended = ended._replace(stuck_in=accused.step, frames=frames)
            found.append(ended)
        return found

    @property
    def descriptors(self) -> list[int]:
        """Of all processes that have not ended."""
        watched = [*self.processes.values(), *self._ending]
        return [each.descriptor for each in watched if each.descriptor >= 0]

    @property
    def ending(self) -> list[int]:
        """Descriptors of processes that count as ended, and still have their devices."""
        return [each.descriptor for each in self._ending]

    def _let_go(self, process: Process) -> None:
        self._kernel.reap(process.pid)
        self._kernel.close(process.descriptor)

    def look(self) -> None:
        """Accuse what hangs, and kill what was accused and has answered."""
        now = self._clock.turn()
        for line in list(self.processes):
            shown = self._board.read(line)
            life = self._lives.setdefault(line, _Life(heard=now, alive=now, since=now))
            if (accused := self._accused.get(line)) is not None:
                self._hear_and_kill(line, accused, now)
            elif shown.heartbeat and (silent := self._silence(line, life, shown, now)) is not None:
                self._accuse(line, f"{silent} and was killed", shown, now)
            elif (stuck := self._stuck(life, shown, now)) is not None:
                self._accuse(line, f"{stuck} and was killed", shown, now)

    def _silence(self, line: int, life: _Life, shown: BoardLine, now: float) -> str | None:
        """In words, if its heartbeat has been missing for too long and it is not busy."""
        if shown.heartbeat != life.heartbeat:
            if shown.is_up and life.heartbeat:
                self._longest_pause = max(self._longest_pause, now - life.heard)
            life.heartbeat, life.heard, life.alive = shown.heartbeat, now, now
            life.busy, life.processor = 0, 0.0
            return None
        if now - life.heard < min(_WITHOUT_DOUBT, self._limits.heartbeat / 2):
            return None
        signs = self._signs(self.processes[line].pid)
        if signs is None:
            return None
        self._note(life, signs, now)
        limit = self._heartbeat_limit if shown.is_up else self._limits.first_heartbeat
        if now - life.alive <= limit:
            return None
        how = "was stopped" if signs.is_stopped else "had no heartbeat"
        return f"{how} for {now - life.alive:.1f} s"

    def _note(self, life: _Life, signs: Signs, now: float) -> None:
        """One without a heartbeat may be busy."""
        life.busy = life.busy + 1 if signs.is_busy and not signs.is_stopped else 0
        has_worked = signs.processor - life.processor >= _LEAST_PROCESSOR
        if (has_worked and life.processor) or life.busy >= _LEAST_BUSY:
            life.alive = now
        if has_worked or not life.processor:
            life.processor = signs.processor

    def _stuck(self, life: _Life, shown: BoardLine, now: float) -> str | None:
        """In words, if it has been at the same place for too long."""
        at = (shown.generation, shown.step, shown.position)
        if life.at != at or shown.is_waiting:
            if life.at != at and not shown.is_first:
                self._longest_instruction = max(self._longest_instruction, now - life.since)
            life.at, life.since = at, now
            return None
        limit = self._limits.first_step if shown.is_first else self._instruction_limit
        if not shown.heartbeat or now - life.since <= limit:
            return None
        where = f"instruction {shown.position} of step {shown.step}" if shown.is_up else "its start"
        return f"was stuck in {where} for {now - life.since:.1f} s"

    @property
    def _heartbeat_limit(self) -> float:
        least = self._limits.heartbeat
        return min(max(least, _PAUSES * self._longest_pause), _MOST_PAUSES * least)

    @property
    def _instruction_limit(self) -> float:
        return max(self._limits.instruction, _INSTRUCTIONS * self._longest_instruction)

    def _accuse(self, line: int, how: str, shown: BoardLine, now: float) -> None:
        """Ask it where it is; what is stopped cannot answer, and is not at fault."""
        if how.startswith("was stopped"):
            self.kill(line, how)
            return
        # The signal ends a process that is not far enough to answer.
        self._why.setdefault(line, how)
        self._accused[line] = _Accused(how, now, shown.step)
        self._board.clear_dump(line)
        self._signal(line, signal.SIGUSR2)

    def _hear_and_kill(self, line: int, accused: _Accused, now: float) -> None:
        """Once it has answered, or does not."""
        length = len(self._board.dump(line))
        if (length and length == accused.length) or now - accused.asked > _DUMP_SECONDS:
            self.kill(line, accused.how)
        accused.length = length

    def _signal(self, line: int, number: signal.Signals) -> None:
        process = self.processes.get(line)
        if process is not None and process.descriptor >= 0:
            self._kernel.signal(process.descriptor, number)
