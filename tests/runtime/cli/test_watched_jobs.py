"""Whole jobs of `coordinator` and `node` with `--metrics`: every step has one row, whoever is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.agent.process_table import ProcessTable
from recycle_runtime.protocol.framing import new_token
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

_STEPS = 40
_ALL = 1 << 30
_PATIENCE = 300.0
_GATE = "GATE_OF_TESTS"
_GATED = f"""
import itertools, os, time

_loss, _made = loss, itertools.count()

def loss(output, target):
    number = next(_made)
    while number >= int(Path(os.environ["{_GATE}"]).read_text() or 0):
        time.sleep(0.01)
    return _loss(output, target)
"""
"""A worker process makes so many micro-batches, then it waits until the test lets it make more."""


class Job:
    """Processes of a job of two workers, from outside."""

    def __init__(self, folder: Path, plan: str) -> None:
        self._folder, self._plan = folder, plan
        self._gate = folder / "gate"
        self.allow(10)
        self.metrics, self.stderr = folder / "run.jsonl", folder / "stderr"
        self._program = ["--program", changed(folder, TINY, _GATED)]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._environment = os.environ | {
            _GATE: str(self._gate),
            "RECYCLE_TOKEN": new_token(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NODE_RANK": "0",
            "NNODES": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def allow(self, microbatches: int) -> None:
        """Each worker process, in all."""
        self._gate.write_text(str(microbatches))

    def coordinate(self, *options: str) -> "subprocess.Popen[bytes]":
        state = str(self._folder / "state")
        words = ["coordinator", self._plan, "--listen", "127.0.0.1:0", "--state", state]
        return self._start([*words, *self._of_job(), *options])

    def train(self) -> "subprocess.Popen[bytes]":
        """An agent, which finds the coordinator wherever it is."""
        words = ["agent", self._plan, "--coordinator", str(self._folder / "state" / "address")]
        words += ["--state", str(self._folder / "node"), "--workers-per-node", "2"]
        return self._start([*words, *self._program, *_LIMITS])

    def node(self) -> "subprocess.Popen[bytes]":
        words = ["node", self._plan, "--workers-per-node", "2", "--state", str(self._folder)]
        words += ["--node-state", str(self._folder / "node")]
        return self._start([*words, *self._program, *self._of_job()])

    def kill_a_worker(self) -> None:
        """Of those that train, once some steps are made."""
        self.until(lambda: len(self.rows()) >= 3)
        table = ProcessTable(self._folder / "node" / "processes.json", 2)
        os.kill(table.written()[0].pid, signal.SIGKILL)

    def rows(self) -> list[dict[str, Any]]:
        return _whole_lines(self.metrics)

    def told(self) -> int:
        """Number of rows that the coordinator has told, by its journal."""
        return sum("told" in line for line in _whole_lines(self._folder / "state" / "journal.jsonl"))

    def events(self) -> list[str]:
        return [row["event"] for row in self.rows() if row["event"] is not None]

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, self.stderr.read_text()
            time.sleep(0.02)

    def check(self, *processes: "subprocess.Popen[bytes]") -> None:
        """They end well, and every step has one row."""
        assert [each.wait(_PATIENCE) for each in processes] == [0] * len(processes), self.stderr.read_text()
        assert [row["step"] for row in self.rows()] == list(range(_STEPS))
        alone = train_alone(TINY, 1, 2, _STEPS)
        assert [row["loss"] for row in self.rows()] == pytest.approx(alone.losses, rel=1e-9)
        assert f"step {_STEPS - 1:5}  loss " in self.stderr.read_text()

    def end(self) -> None:
        for each in self._started:
            # All that they have started are in their sessions.
            for pid in _session(each.pid):
                os.kill(pid, signal.SIGKILL)
            each.wait()

    def _of_job(self) -> list[str]:
        words = ["--steps", str(_STEPS), "--metrics", str(self.metrics), *_LIMITS]
        return [*words, "--plan-ahead", "off", "--replan", "off"]

    def _start(self, words: list[str]) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "recycle_runtime.cli", *words]
        with self.stderr.open("ab") as stderr:
            process = subprocess.Popen(command, env=self._environment, stderr=stderr, start_new_session=True)
        self._started.append(process)
        return process


_LIMITS = ["--instruction-timeout", "600", "--first-step-timeout", "600"]


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The last may be half written."""
    text = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _session(leader: int) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.fixture
def job(tmp_path: Path, pair: str) -> Generator[Job]:
    made = Job(tmp_path, pair)
    try:
        yield made
    finally:
        made.end()


def test_a_node_tells_of_a_worker_that_is_killed(job: Job) -> None:
    node = job.node()
    job.kill_a_worker()
    job.allow(_ALL)
    job.check(node)
    assert any(": continues with step" in event for event in job.events())
    assert ": continues with step" in job.stderr.read_text()


def test_a_coordinator_that_is_killed_goes_on_with_its_rows(job: Job) -> None:
    """It has told rows that are not in the file, since nobody knows yet what became of their steps."""
    first, agent = job.coordinate("--restart-workers", "off"), job.train()
    job.kill_a_worker()
    job.allow(30)
    job.until(lambda: bool(job.events()) and job.told() > len(job.rows()))
    first.kill()
    first.wait()
    second = job.coordinate("--restart-workers", "off")
    job.allow(_ALL)
    job.check(second, agent)
    (event,) = job.events()
    assert ": continues with step" in event
    assert {row["live"] for row in job.rows()} == {1, 2}
    names = {"step", "loss", "learning_rate", "gradient_norm", "skipped", "seconds", "live", "plan", "event"}
    assert all(names <= {*row} for row in job.rows())
    assert any(row["gradient_norm"] is not None for row in job.rows())
    said = job.stderr.read_text()
    assert "-- all 2 workers are ready: they meet\n" in said
    assert "step     0  loss " in said
