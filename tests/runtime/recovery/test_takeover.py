"""The node that coordinates is lost, or paused for a while: another one takes over from the shared folder."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from recycle_runtime.coordinator.leadership import newest_term
from recycle_runtime.protocol.framing import new_token
from tests.runtime.recovery.programs.paces import SLOW
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

_STEPS = 400
_PATIENCE = 300.0


class Job:
    """Three nodes of two workers, which share all but their processes."""

    def __init__(self, folder: Path, bundle: str) -> None:
        self.folder, self.shared = folder, folder / "state" / "coordinator"
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._environment = os.environ | {
            "RECYCLE_TOKEN": new_token(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NNODES": "3",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._command = [sys.executable, "-m", "recycle_runtime.cli", "node", bundle]
        self._command += ["--program", changed(folder, TINY, SLOW), "--steps", str(_STEPS)]
        self._command += ["--workers-per-node", "2", "--state", str(folder / "state"), "--plan-ahead", "off"]
        self._command += ["--replan", "off", "--checkpoint", str(folder / "kept"), "--takeover-timeout", "4"]
        self._command += ["--metrics", str(folder / "run.jsonl")]
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(3):
            self.start(rank)

    def start(self, rank: int) -> None:
        with (self.folder / f"stderr-{rank}").open("ab") as stderr:
            environment = self._environment | {"NODE_RANK": str(rank)}
            self.nodes[rank] = subprocess.Popen(
                self._command, env=environment, stderr=stderr, start_new_session=True
            )

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            is_over = all(node.poll() is not None for node in self.nodes.values())
            if is_over or time.monotonic() > deadline:
                pytest.fail(self.said(), pytrace=False)
            time.sleep(0.05)

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("stderr-*")))

    def rows(self) -> list[tuple[float, int]]:
        """Of every step, by the journal: its loss, and how many workers made it."""
        path = self.shared / "journal.jsonl"
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        rows = [line["told"] for line in map(json.loads, text.splitlines()) if "told" in line]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        return [(row["loss"], row["live"]) for row in rows]

    def metrics(self) -> list[int]:
        """Steps in the file, to which whoever leads appends."""
        text = (self.folder / "run.jsonl").read_text().rpartition("\n")[0]
        return [json.loads(line)["step"] for line in text.splitlines()]

    def until_steps(self, more: int, live: int) -> None:
        """The last of which so many workers made."""
        goal = len(self.rows()) + more
        self.until(lambda: len(self.rows()) >= goal and self.rows()[-1][1] == live)

    def candidate(self) -> int:
        """The node that coordinates."""
        found = newest_term(self.shared)
        return -1 if found is None else found.candidate

    def processes(self, rank: int) -> list[int]:
        """All of a node: each of them is in a session that its first process has begun."""
        leader = self.nodes[rank].pid
        return [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _session_of(int(entry.name)) == leader
        ]

    def signal(self, rank: int, number: int) -> None:
        for pid in self.processes(rank):
            os.kill(pid, number)

    def end(self) -> None:
        for rank, node in self.nodes.items():
            self.signal(rank, signal.SIGKILL)
            node.wait()

    def check(self) -> None:
        losses = [loss for loss, _ in self.rows()]
        assert losses == pytest.approx(train_alone(TINY, 2, 6, len(losses)).losses, rel=1e-9)


def _session_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, IndexError):
        return -1


@pytest.fixture
def job(tmp_path: Path, wide: str) -> Generator[Job]:
    made = Job(tmp_path, wide)
    try:
        made.until(lambda: len(made.rows()) >= 5 or any(node.poll() for node in made.nodes.values()))
        made.until_steps(1, 6)
        assert made.candidate() == 0
        yield made
    finally:
        made.end()


@pytest.mark.slow
def test_the_first_node_is_lost_and_comes_back(job: Job) -> None:
    """With all its processes; when it is back, it stands by, and the job ends in order wherever it is led."""
    began = time.monotonic()
    job.signal(0, signal.SIGKILL)
    job.nodes[0].wait()
    job.until_steps(1, 4)
    print(f"\nfirst node killed: the next step {time.monotonic() - began:.2f} s later")
    assert job.candidate() == 1
    job.start(0)
    job.until_steps(10, 6)
    assert job.candidate() == 1
    # A node that stands by is told to end, and leaves; then the one that coordinates, which ends the job.
    job.nodes[0].terminate()
    assert job.nodes[0].wait(_PATIENCE) == 128 + signal.SIGTERM
    job.until_steps(1, 4)
    job.nodes[1].terminate()
    assert job.nodes[1].wait(_PATIENCE) == 128 + signal.SIGTERM
    assert job.nodes[2].wait(_PATIENCE) == 0
    job.check()
    assert job.metrics() == list(range(len(job.rows())))
    assert (job.folder / "kept" / f"step-{len(job.rows()):08d}").is_dir(), job.said()


@pytest.mark.slow
def test_the_first_node_is_paused_and_wakes_up(job: Job) -> None:
    """Its kernel answers for it all the while. What it has to say then is not heard."""
    began = time.monotonic()
    job.signal(0, signal.SIGSTOP)
    job.until_steps(1, 4)
    print(f"\nfirst node paused: the next step {time.monotonic() - began:.2f} s later")
    assert job.candidate() == 1
    job.signal(0, signal.SIGCONT)
    job.until_steps(10, 6)
    assert job.candidate() == 1
    assert "has lost its lease" in job.said()
    job.check()
    made = job.metrics()
    assert made == list(range(len(made)))
