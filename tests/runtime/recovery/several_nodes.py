"""A job on several nodes: a coordinator on one, an agent for two workers on each other, and a watchdog."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recycle_runtime.protocol.framing import new_token
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.messages.observers import JobEnded, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.protocol.messages.wire import Message, from_fields
from tests.runtime.recovery.nodes import Node
from tests.runtime.recovery.programs.paces import PACE, PACED
from tests.runtime.recovery.watched import TINY, Outcome, check
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

WORKERS_PER_NODE = 2
_PORT = 29517
_STILL = 300.0
"""Seconds without a step after which a run counts as hung; longer than anybody waits for anybody."""


class SeveralNodes:
    """The job, from outside. It takes its time until `finish` is called."""

    def __init__(
        self,
        folder: Path,
        bundle: str,
        steps: int,
        coordinator: Node,
        port: int = _PORT,
        checkpoint: Path | None = None,
    ) -> None:
        self._folder, self._bundle, self._steps = folder, bundle, steps
        self._address, self._port = coordinator.address, port
        self.program = changed(folder, TINY, PACED)
        self._pace = folder / "pace"
        self._set_pace(0.03)
        self._slower = {steps * 3 // 4: 0.3, steps * 7 // 8: 2.0}
        """Seconds for each micro-batch from these steps on, so that the job does not end too early."""
        self._is_finishing = False
        self._environment = {
            "RECYCLE_TOKEN": new_token(),
            PACE: str(self._pace),
        }
        (folder / "saved").mkdir()
        self.state = folder / "state"
        self._nodes: list[Node] = [coordinator]
        self._stderr = (folder / "stderr").open("ab")
        self._follows = port == 0
        """True if agents find the coordinator wherever it is."""
        self._checkpoint: list[str] = [] if checkpoint is None else ["--checkpoint", str(checkpoint)]
        self.coordinate(coordinator, port)
        self._wait_for(lambda: (self.state / "address").exists(), "the coordinator does not listen")
        self._news = folder / "news"
        self._news.touch()
        self.observe(coordinator)
        self._read = 0
        self.outcome = Outcome()
        self.moments: list[tuple[int, float]] = []
        """Steps, and when they were told."""
        self._told = time.monotonic()
        self.is_over = False

    def coordinate(self, node: Node, port: int = 0) -> None:
        """A coordinator there, the first one or another."""
        command = ["coordinator", self._bundle, "--steps", str(self._steps)]
        command += ["--listen", f"{node.address}:{port}", "--state", str(self.state)]
        command += ["--plan-ahead", "off", "--replan", "off", *self._checkpoint]
        command += ["--checkpoint-every", "5"] if self._checkpoint else []
        self._start(node, command)

    def observe(self, node: Node, first: int = 0) -> None:
        """Row after row that the coordinator tells, from this step on."""
        with self._news.open("ab") as out:
            place = (self.state / "address").read_text().rpartition(":")
            observer = [sys.executable, "-m", "tests.runtime.recovery.observer", place[0], place[2]]
            observer.append(str(first))
            node.start(observer, self._environment, out)

    @property
    def port(self) -> int:
        return int((self.state / "address").read_text().rpartition(":")[2])

    def add(self, node: Node, *options: str, through: Sequence[str] = ()) -> None:
        """An agent on it, started by the command `through`."""
        self._nodes.append(node)
        command = ["agent", self._bundle, "--program", self.program]
        command += [
            "--coordinator",
            str(self.state / "address") if self._follows else f"{self._address}:{self.port}",
            "--workers-per-node",
            str(WORKERS_PER_NODE),
            "--coordinator-timeout",
            "60" if self._follows else "30",
            *self._checkpoint,
        ]
        command += ["--state", str(self._folder / node.name), "--save", str(self._folder / "saved")]
        self._start(node, [*command, *options], through)

    def step(self) -> int:
        """Steps that have been told."""
        self.listen()
        return len(self.outcome.rows)

    def live(self) -> int:
        """Workers that took part in the last step told."""
        self.listen()
        return self.outcome.rows[-1].live if self.outcome.rows else 0

    def until(self, is_so: Callable[[], bool], what: str) -> float:
        """Wait for it; when that was. Fails with the state of everybody if the job stands still."""
        while True:
            self.listen()
            if is_so():
                return time.monotonic()
            if self.is_over:
                self.fail(f"the job ended before {what}")
            if time.monotonic() - self._told > _STILL:
                self.fail(f"nothing happens, and this neither: {what}")
            time.sleep(0.02)

    def until_steps(self, count: int) -> None:
        """So many more."""
        goal = self.step() + count
        self.until(lambda: self.step() >= goal, f"step {goal}")

    def next_step_after(self, moment: float, live: int) -> float:
        """Seconds from a moment to the first step told that so many workers made."""
        row = lambda: next(  # noqa: E731
            (at for (_, at), told in zip(self.moments, self.outcome.rows, strict=True)
             if at > moment and told.live == live), None)  # fmt: skip
        self.until(lambda: row() is not None, f"a step of {live} workers")
        return (row() or 0.0) - moment

    def finish(self) -> Outcome:
        """The rest at full speed."""
        self._is_finishing = True
        self._set_pace(0.0)
        deadline = time.monotonic() + _STILL
        while not self.is_over:
            self.listen()
            if time.monotonic() > deadline and time.monotonic() - self._told > _STILL:
                self.fail("the job does not end")
            time.sleep(0.02)
        return self.outcome

    def finish_and_check(self) -> None:
        """Every step once, and the parameters of a run in which nothing happened."""
        outcome = self.finish()
        self.until_ended()
        check(self._folder, outcome, train_alone(TINY, 2, 6, self._steps))

    def until_ended(self) -> None:
        """The coordinator has left, and with it whoever could still save something."""
        deadline = time.monotonic() + 120
        while self._nodes[0].processes() and time.monotonic() < deadline:
            time.sleep(0.05)

    def until_gone(self, node: Node) -> None:
        """Nothing runs there any more."""
        deadline = time.monotonic() + _STILL
        while left := node.processes():
            if time.monotonic() > deadline:
                self.fail(f"on {node.name} still run {left}")
            time.sleep(0.05)

    def listen(self) -> None:
        with self._news.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                at, fields = json.loads(line)
                self._take(at, from_fields(fields))

    def fail(self, why: str) -> None:
        """With what everybody does now."""
        words = [why, f"causes: {self.outcome.causes}", f"events: {self.outcome.events}"]
        for node in self._nodes[1:]:
            path = self._folder / node.name / "board"
            if path.exists():
                board = Board(path, WORKERS_PER_NODE)
                words += [f"{node.name} {number}: {board.read(number)}" for number in range(WORKERS_PER_NODE)]
                board.close()
            for pid in self.workers(node):
                os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)
        words += ["journal:", *(self.state / "journal.jsonl").read_text().splitlines()[-8:]]
        words += ["stderr:", (self._folder / "stderr").read_text(errors="replace")[-20_000:]]
        pytest.fail("\n".join(words), pytrace=False)

    def said(self) -> str:
        return (self._folder / "stderr").read_text(errors="replace")

    def end(self) -> None:
        """Whatever is left."""
        for node in self._nodes:
            node.kill()
        self._stderr.close()

    def workers(self, node: Node) -> list[int]:
        """Processes that say where they are when they are asked."""
        found: list[int] = []
        for pid in node.processes():
            try:
                fields = Path(f"/proc/{pid}/status").read_text().splitlines()
            except OSError:
                continue
            caught = next((line.split()[1] for line in fields if line.startswith("SigCgt")), "0")
            if int(caught, 16) >> (signal.SIGUSR1 - 1) & 1:
                found.append(pid)
        return found

    def _take(self, at: float, message: Message) -> None:
        assert isinstance(message, ToObserver)
        self.outcome.take(message)
        if isinstance(message, StepRow):
            self._told = time.monotonic()
            self.moments.append((message.step, at))
            if not self._is_finishing and message.step in self._slower:
                self._set_pace(self._slower[message.step])
        elif isinstance(message, JobEnded):
            self.is_over = True

    def _set_pace(self, seconds: float) -> None:
        aside = self._pace.with_suffix(".new")
        aside.write_text(str(seconds))
        aside.replace(self._pace)

    def _start(self, node: Node, command: Sequence[str], through: Sequence[str] = ()) -> None:
        words = [*through, sys.executable, "-m", "recycle_runtime.cli", *command]
        node.start(words, self._environment, self._stderr)

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _STILL
        while not is_so():
            if time.monotonic() > deadline:
                pytest.fail(f"{what}\n{self.said()}", pytrace=False)
            time.sleep(0.02)
