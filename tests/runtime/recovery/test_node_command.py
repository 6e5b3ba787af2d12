"""Whole jobs of `recycle-run node`: the same command for every node, on loopback."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.agent.process_table import ProcessTable
from recycle_runtime.protocol.framing import new_token
from tests.runtime.recovery.programs.paces import SLOW
from tests.runtime.recovery.watched import TINY, saved_models, stage_of
from tests.runtime.training.alone import Alone, train_alone
from tests.runtime.training.compare import changed

_STEPS = 120
_PATIENCE = 300.0


class Nodes:
    """Two nodes, from outside."""

    def __init__(self, folder: Path, bundle: str, copies: int | None = None, *others: str) -> None:
        """With checkpoints, or copies in memory every so many steps, and these other options."""
        self.folder, self.state = folder, folder / "state"
        (folder / "saved").mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._environment = os.environ | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NNODES": "2",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._command = [sys.executable, "-m", "recycle_runtime.cli", "node", bundle]
        self._command += ["--program", changed(folder, TINY, SLOW), "--steps", str(_STEPS)]
        self._command += ["--workers-per-node", "2", "--state", str(self.state), "--plan-ahead", "off"]
        self._command += ["--replan", "off", "--save", str(folder / "saved"), "--restart-workers", "off"]
        kept = ["--checkpoint", str(folder / "kept")]
        in_memory = ["--neighbour-copies", str(copies), "--log-level", "info"]
        self._command += [*(kept if copies is None else in_memory), *others]
        token = folder / "token"
        token.touch(0o600)
        token.write_text(new_token())
        # A coordinator that is started again has another certificate.
        self._command += ["--token-file", str(token), *(["--tls"] if shutil.which("openssl") else [])]
        self.nodes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        for rank in range(2):
            with (self.folder / f"stderr-{rank}").open("w") as stderr:
                environment = self._environment | {"NODE_RANK": str(rank)}
                self.nodes.append(
                    subprocess.Popen(
                        self._command, env=environment, stderr=stderr, text=True, process_group=0
                    )
                )

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            assert time.monotonic() < deadline and all(node.poll() is None for node in self.nodes), (
                self.said()
            )
            time.sleep(0.05)

    def said(self) -> str:
        return "\n".join((self.folder / f"stderr-{rank}").read_text() for rank in range(2))

    def journal(self) -> list[dict[str, Any]]:
        path = self.state / "coordinator" / "journal.jsonl"
        # The last line may be half written.
        text = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def losses(self) -> list[float]:
        """By the coordinator's journal, which has every step once."""
        rows = [line["told"] for line in self.journal() if "told" in line]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        return [row["loss"] for row in rows]

    def until_steps(self, more: int) -> None:
        goal = len(self.losses()) + more
        self.until(lambda: len(self.losses()) >= goal)

    def child(self, node: int, name: str) -> int:
        """The process of that command on this node."""
        (pid,) = self._children(node, name)
        return pid

    def until_another(self, node: int, name: str, before: int) -> None:
        """Workers train on for a while before it is started again."""
        self.until(lambda: self._children(node, name) not in ([], [before]))

    def _children(self, node: int, name: str) -> list[int]:
        """None where it has died."""
        pid = self.nodes[node].pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(each) for each in found if name in Path(f"/proc/{each}/cmdline").read_text().split("\0")]

    def workers(self, node: int) -> list[int]:
        path = self.state / f"node-{node}" / "processes.json"
        return [row.pid for row in ProcessTable(path, 2).written()]

    def kill_stage(self, stage: int) -> None:
        for node in range(2):
            for row in ProcessTable(self.state / f"node-{node}" / "processes.json", 2).written():
                if row.member.worker[1] == stage:
                    os.kill(row.pid, signal.SIGKILL)

    def has_copy(self) -> bool:
        """True if a copy is complete, on both nodes."""
        return '"copied"' in (self.state / "coordinator" / "journal.jsonl").read_text()

    def codes(self) -> list[int]:
        return [node.wait(_PATIENCE) for node in self.nodes]

    def end(self) -> None:
        for node in self.nodes:
            if node.poll() is None:
                # All its processes hold on to it.
                node.kill()
            node.wait()


@pytest.fixture
def nodes(tmp_path: Path, square: str) -> Generator[Nodes]:
    job = Nodes(tmp_path, square)
    try:
        job.start()
        job.until_steps(5)
        yield job
    finally:
        job.end()


@pytest.mark.slow
def test_a_worker_an_agent_and_the_coordinator_are_killed(nodes: Nodes) -> None:
    os.kill(nodes.workers(1)[0], signal.SIGKILL)
    nodes.until_steps(5)
    for node, name in ((0, "coordinator"), (0, "agent")):
        before = nodes.child(node, name)
        os.kill(before, signal.SIGKILL)
        nodes.until_steps(5)
        nodes.until_another(node, name, before)
    check_end(nodes, workers=3)


def check_end(nodes: Nodes, workers: int) -> None:
    """A job that has lost no step ends with the losses and parameters of a plain loop."""
    alone = check_saved(nodes, workers)
    assert nodes.losses() == pytest.approx(alone.losses, rel=1e-9)


def check_saved(nodes: Nodes, workers: int) -> Alone:
    """It ends well, with the parameters of a plain loop."""
    assert nodes.codes() == [0, 0], nodes.said()
    alone = train_alone(TINY, 2, 4, _STEPS)
    saved = saved_models(nodes.folder / "saved")
    assert len(saved) == workers
    for path, state in saved.items():
        torch.testing.assert_close(state, alone.states[stage_of(path)], rtol=1e-9, atol=1e-9)
    return alone


@pytest.mark.slow
def test_both_workers_of_a_stage_are_killed(tmp_path: Path, square: str) -> None:
    """All begin again with what the memory of the nodes has, and nothing is read from a disk."""
    job = Nodes(tmp_path, square, copies=5)
    try:
        job.start()
        job.until_steps(1)
        job.until(job.has_copy)
        job.kill_stage(1)
        check_saved(job, workers=4)
        assert "the job goes on from copies in memory with step" in job.said()
    finally:
        job.end()


@pytest.mark.slow
def test_all_processes_are_told_to_end_at_once(nodes: Nodes) -> None:
    """As Slurm does it: the job ends with a checkpoint of all steps that it has made."""
    pids = [node.pid for node in nodes.nodes]
    pids += [nodes.child(0, "coordinator"), nodes.child(0, "agent"), nodes.child(1, "agent")]
    for pid in (*pids, *nodes.workers(0), *nodes.workers(1)):
        os.kill(pid, signal.SIGTERM)
    # And once more, as srun does which was told itself.
    for node in nodes.nodes:
        node.terminate()
    assert nodes.codes()[0] == 128 + signal.SIGTERM
    assert "error: terminated; " in nodes.said()
    assert "resume from it with --resume" in nodes.said()
    (kept,) = (nodes.folder / "kept").glob("step-*")
    assert int(kept.name.removeprefix("step-")) == len(nodes.losses()) < _STEPS
