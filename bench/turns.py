"""Pairs of processes that take turns: each runs some steps while all the others wait.

A turn during which another process kept the machine busy is taken again, a few times.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

PROCESSES = 2
_CONTESTANTS = "bench.contestants"
PATIENCE = 300.0
"""Seconds for one turn."""
_DISTURBED = 0.05
"""Of a core, by others, during a turn."""
_ATTEMPTS = 5
_PAUSE = 2.0
"""Seconds before a turn is taken again."""


class TurnError(RuntimeError):
    """A process failed, or stopped answering."""


class Report(NamedTuple):
    """A process's report of its turn."""

    began: int
    ended: int
    """Nanoseconds of the clock that all processes share."""
    cpu: int
    """Nanoseconds."""
    losses: list[float]
    """Of its steps, where they are computed."""


class Turn(NamedTuple):
    """Times of a pair in one turn."""

    seconds: float
    """For each step, from the start of the first process to the end of the last."""
    cpu: float
    """Seconds for each step, of both processes together."""
    losses: list[float]
    others: float = 0.0
    """Cores that were busy with something else, on average."""


class _Done(Exception):  # noqa: N818
    """No further turn is wanted."""


class Turns:
    """The side of the process: to be told of every step, it returns when the next one may begin."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._losses: list[float] = []
        self._wait()

    def after_step(self, loss: float | None) -> None:
        if loss is not None:
            self._losses.append(loss)
        self._left -= 1
        if self._left == 0:
            cpu = time.process_time_ns() - self._cpu
            self._pipe.send(Report(self._began, time.monotonic_ns(), cpu, self._losses))
            self._losses = []
            self._wait()

    def _wait(self) -> None:
        self._left: int = self._pipe.recv()
        if self._left == 0:
            raise _Done
        self._began, self._cpu = time.monotonic_ns(), time.process_time_ns()


class Setting(NamedTuple):
    """Places in which the processes of a pair find what they need."""

    port: int
    """Of the store they meet at."""
    program: str
    plan: str
    """A bundle for ours; a CSV file for torch's where it reads one."""


class Pair:
    """Two processes of one contestant, a function of bench/contestants.py."""

    def __init__(self, work: str, setting: Setting) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_CONTESTANTS])
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(PROCESSES):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(work, rank, theirs, setting), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def turn(self, steps: int) -> Turn:
        """So many steps, while this process waits."""
        busy = _busy()
        for pipe in self._pipes:
            pipe.send(steps)
        turn = joined(_received(self._pipes), steps)
        others = (_busy() - busy) / steps - turn.cpu
        return turn._replace(others=max(0.0, others / turn.seconds))

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()


def joined(reports: Sequence[Report], steps: int) -> Turn:
    """The turn that the processes of a pair report on."""
    nanoseconds = max(report.ended for report in reports) - min(report.began for report in reports)
    losses = [loss for report in reports for loss in report.losses]
    return Turn(nanoseconds / steps / 1e9, sum(report.cpu for report in reports) / steps / 1e9, losses)


def take_turns(pairs: Sequence[Pair], rounds: int, steps: int) -> list[list[Turn]]:
    """The turns of each pair; each round starts with another one."""
    turns: list[list[Turn]] = [[] for _ in pairs]
    for number in range(rounds):
        for offset in range(len(pairs)):
            which = (number + offset) % len(pairs)
            turns[which].append(undisturbed(lambda pair=pairs[which]: pair.turn(steps)))
    return turns


def undisturbed(take: Callable[[], Turn], attempts: int = _ATTEMPTS, pause: float = _PAUSE) -> Turn:
    """A turn with the machine to itself; the best of some, if that cannot be had."""
    best = take()
    for _ in range(attempts - 1):
        if best.others <= _DISTURBED:
            break
        time.sleep(pause)
        best = min(best, take(), key=lambda turn: turn.others)
    return best


def share(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of one against the other in the same round."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _busy() -> float:
    """Seconds that all cores together have worked so far; 0 where the system does not say."""
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _, _, interrupts, more_interrupts, *_ = map(int, words[1:])
    return (user + nice + system + interrupts + more_interrupts) / os.sysconf("SC_CLK_TCK")


def _received(pipes: Sequence[Connection]) -> list[Report]:
    """Answers of all, in any order: where one has failed the other may wait for it."""
    found: dict[Connection, Report] = {}
    until = time.monotonic() + PATIENCE
    while missing := [pipe for pipe in pipes if pipe not in found]:
        ready = [each for each in wait(missing, until - time.monotonic()) if isinstance(each, Connection)]
        if not ready:
            raise TurnError(f"no answer for {PATIENCE:.0f} s")
        found |= {pipe: _report(pipe) for pipe in ready}
    return [found[pipe] for pipe in pipes]


def _report(pipe: Connection) -> Report:
    try:
        answer: Report | str = pipe.recv()
    except EOFError:
        raise TurnError("a process ended in the middle of its turn") from None
    if isinstance(answer, str):
        raise TurnError(answer)
    return answer


def _serve(work: str, rank: int, pipe: Connection, setting: Setting) -> None:
    try:
        getattr(import_module(_CONTESTANTS), work)(rank, Turns(pipe), setting)
    except (_Done, EOFError, BrokenPipeError):
        return
    except Exception as error:
        pipe.send(f"process {rank}: {_said(error)}")


def _said(error: BaseException) -> str:
    """An error and what has led to it."""
    text = f"{type(error).__name__}: {error}"
    return text if error.__cause__ is None else f"{text}, from {_said(error.__cause__)}"
