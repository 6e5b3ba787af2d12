"""Whole runs over processes, watched: one that stands still says where everybody is, and nothing is left."""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from recycle_runtime.launcher.supervisor import Supervisor, SupervisorError, supervised
from recycle_runtime.options.run import AdaptationOptions, RunOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.messages.members import InjectedFault
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Recovered,
    ToObserver,
)
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.training.alone import Alone, train_alone

PROGRAMS = Path(__file__).resolve().parent / "programs"
TINY = str(PROGRAMS / "tiny.py")
BUFFERS_AND_DROPOUT = str(PROGRAMS / "buffers_and_dropout.py")

_STILL = 300.0
"""Seconds without any news after which a run counts as hung; start-up on a busy machine takes a third."""

Drive = Callable[[Supervisor, ToObserver], None]
"""Called with all news of a run, to inject faults from outside."""


@dataclass
class Outcome:
    """Facts about a run that has ended."""

    rows: list[StepRow] = field(default_factory=list[StepRow])
    recoveries: list[Recovered] = field(default_factory=list[Recovered])
    generations: list[int] = field(default_factory=list[int])
    events: list[str] = field(default_factory=list[str])
    faults: list[InjectedFault] = field(default_factory=list[InjectedFault])
    """That have happened."""
    error: str | None = None

    @property
    def causes(self) -> list[str]:
        return [cause for recovery in self.recoveries for cause in recovery.causes]

    def take(self, message: ToObserver) -> None:
        match message:
            case StepRow():
                self.rows.append(message)
            case Recovered():
                self.recoveries.append(message)
            case Generation():
                self.generations.append(message.number)
            case JobEvent():
                self.events.append(message.text)
                if message.fault is not None:
                    self.faults.append(message.fault)
            case JobEnded():
                self.error = message.error
            case _:
                pass


def run(
    folder: Path,
    bundle: str,
    program: str,
    steps: int,
    faults: list[str] | None = None,
    returns: list[str] | None = None,
    drive: Drive = lambda supervisor, message: None,
    heartbeat_timeout: float = 20.0,
    instruction_timeout: float = 600.0,
    first_step_timeout: float = 600.0,
    recut: str = "off",
    checkpoint: Path | None = None,
    resume: bool = False,
    adaptation: AdaptationOptions | None = None,
    undo: Literal["device", "host"] = "device",
    **more: Any,
) -> Outcome:
    """Train to the end; parameters are in `folder`/saved. Fails the test when nothing happens for long.
    What is given `more` goes to the job as it is. Op times of tests are far from their plans', so nothing is
    planned anew unless that is asked for."""
    (folder / "saved").mkdir(parents=True)
    plan, state = Bundle.read(bundle), folder / "state"
    job = RunOptions(
        bundle=bundle,
        program=program,
        steps=steps,
        workers_per_node=plan.pipelines * plan.stages * plan.tensor,
        state=state,
        save=str(folder / "saved"),
        faults=tuple(faults or ()),
        returns=tuple(returns or ()),
        heartbeat_timeout=heartbeat_timeout,
        instruction_timeout=instruction_timeout,
        first_step_timeout=first_step_timeout,
        adaptation=adaptation or AdaptationOptions(replan=None, recut=recut),
        checkpoint=None if checkpoint is None else str(checkpoint),
        resume=resume,
        undo=undo,
        **more,
    )
    outcome = Outcome()
    found: list[str] = []
    with _stderr_in(folder / "stderr"):
        try:
            with (
                supervised(job) as supervisor,
                _Watchdog(state, job.workers_per_node, supervisor, found) as watchdog,
            ):
                for message in supervisor.news():
                    watchdog.news(message)
                    outcome.take(message)
                    drive(supervisor, message)
        except SupervisorError as error:
            outcome.error = str(error)
    said = (folder / "stderr").read_text(errors="replace")
    if found:
        pytest.fail("\n".join(["the run stood still", *found, said[-20_000:]]), pytrace=False)
    _check_nothing_is_left(state, said)
    return outcome


def disturbed(
    folder: Path,
    bundle: str,
    steps: int,
    faults: list[str],
    returns: list[str] | None = None,
    program: str = TINY,
    **options: Any,
) -> Outcome:
    """A run with these faults, in `folder`/run, that ends as if there had been none."""
    plan = Bundle.read(bundle)
    alone = train_alone(program, plan.stages, plan.pipelines * plan.microbatches, steps)
    outcome = run(folder / "run", bundle, program, steps, faults, returns, **options)
    check(folder / "run", outcome, alone)
    return outcome


def check(folder: Path, outcome: Outcome, alone: Alone) -> None:
    """Every step once and in order, with its loss; whoever trains at the end has the parameters it should."""
    said = check_rows(folder, outcome, alone.losses)
    assert outcome.generations == sorted(set(outcome.generations))
    files = sorted((folder / "saved").glob("worker-*.pt"))
    # A joiner may have caught up in the last steps.
    assert len(files) >= outcome.rows[-1].live, (files, said)
    for path, state in saved_models(folder / "saved").items():
        wanted = alone.states[stage_of(path)]
        assert state.keys() == wanted.keys()
        check_saved(path, state, wanted)


def check_rows(folder: Path, outcome: Outcome, losses: Sequence[float], first: int = 0) -> str:
    """The run has ended well, and has every step from `first` on once and in order, with its loss. What was
    said on stderr."""
    said = (folder / "stderr").read_text(errors="replace")[-5_000:]
    assert outcome.error is None, said
    assert [row.step for row in outcome.rows] == list(range(first, len(losses))), said
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(losses[first:], rel=1e-9), said
    return said


def saved_models(folder: Path) -> dict[Path, dict[str, torch.Tensor]]:
    """Parameters and buffers by file, as every rank has saved them."""
    return {
        path: torch.load(path, map_location="cpu", weights_only=True)["model"]
        for path in sorted(folder.glob("worker-*.pt"))
    }


def check_saved(
    path: Path,
    state: Mapping[str, torch.Tensor],
    whole: Mapping[str, torch.Tensor],
    within: float = 1e-9,
) -> None:
    """A worker has saved what the whole state has, but of experts those in its slots alone."""
    here: dict[str, list[int]] = torch.load(path, weights_only=True).get("experts", {})
    parts = {name: whole[name][rows] for name, rows in here.items()}
    check_close(state, {**whole, **parts}, within)


def stage_of(path: Path) -> int:
    """That whoever wrote the file had at the end."""
    return int(path.name.split("-")[2])


def check_close(
    found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor], within: float = 1e-9
) -> None:
    """All that was found is as expected, where more may be."""
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=within, atol=within)


class _Watchdog:
    """Ends a run in which nothing happens."""

    def __init__(self, state: Path, workers: int, supervisor: Supervisor, found: list[str]) -> None:
        self._state, self._workers, self._supervisor, self._found = state, workers, supervisor, found
        self._heard = time.monotonic()
        self._over = threading.Event()

    def news(self, message: ToObserver) -> None:
        # Only steps are a sign that the run goes on: groups that form and break up for ever are not.
        if isinstance(message, StepRow | JobEnded | Hello):
            self._heard = time.monotonic()

    def __enter__(self) -> "_Watchdog":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            if time.monotonic() - self._heard > _STILL:
                self._found.append(self._look())
                # Both are ended by signals that they cannot be restarted from, and that ends the news.
                self._supervisor.coordinator.restarts = self._supervisor.agent.restarts = 1_000
                self._supervisor.coordinator.process.kill()
                return

    def _look(self) -> str:
        board = Board(self._state / "node" / "board", self._workers)
        lines = [f"line {number}: {board.read(number)}" for number in range(self._workers)]
        board.close()
        for pid in processes_of(self._state):
            if pid not in (self._supervisor.coordinator.process.pid, self._supervisor.agent.process.pid):
                os.kill(pid, signal.SIGUSR1)
                time.sleep(0.2)
        journal = self._state / "journal.jsonl"
        tail = journal.read_text()[-2_000:] if journal.exists() else ""
        return "\n".join([*lines, "journal:", tail])


def processes_of(path: Path) -> list[int]:
    """All processes whose command names a file or a folder; zombies show no command, and count as gone."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(path) in command:
            found.append(int(entry.name))
    return found


def _check_nothing_is_left(state: Path, said: str) -> None:
    deadline = time.monotonic() + 60
    while (left := processes_of(state)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, said[-5_000:]
    host, _, port = (state / "address").read_text().rpartition(":")
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect((host, int(port)))


@contextmanager
def _stderr_in(path: Path) -> Generator[None]:
    """Send the stderr of child processes to a file."""
    kept = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
