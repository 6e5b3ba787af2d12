"""Copies in memory on several nodes: a node is killed, and with it the last worker of a stage."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.runtime.recovery.nodes import LoopbackNode, Node
from tests.runtime.recovery.several_nodes import SeveralNodes
from tests.runtime.recovery.watched import TINY, check_close, saved_models, stage_of
from tests.runtime.training.alone import train_alone

STEPS = 60


class WithCopies(SeveralNodes):
    """The same with a copy every third step, and no checkpoints."""

    def coordinate(self, node: Node, port: int = 0) -> None:
        command = ["coordinator", self._bundle, "--steps", str(self._steps)]
        command += ["--listen", f"{node.address}:{port}", "--state", str(self.state)]
        command += ["--plan-ahead", "off", "--replan", "off", "--neighbour-copies", "3"]
        self._start(node, [*command, "--restart-workers", "off"])

    def kill_worker(self, node: Node, stage: int) -> None:
        rows = json.loads((self._folder / node.name / "processes.json").read_text())
        (pid,) = [row[2] for row in rows if row[0][0][1] == stage]
        os.kill(pid, signal.SIGKILL)

    def has_resumed(self) -> bool:
        journal = self.state / "resumed-1" / "journal.jsonl"
        return journal.exists() and "generation" in journal.read_text()

    def copied(self) -> dict[str, list[str]]:
        lines = [json.loads(line) for line in (self.state / "journal.jsonl").read_text().splitlines()]
        found = [line["copied"] for line in lines if "copied" in line]
        return found[-1][4] if found else {}


@pytest.mark.slow
def test_a_node_is_killed_with_the_last_worker_of_a_stage(tmp_path: Path, wide: str) -> None:
    """The copy that it held is on another node, and goes to all nodes from there."""
    head = LoopbackNode("coordinator")
    job = WithCopies(tmp_path, wide, STEPS, head, port=0)
    try:
        nodes = [LoopbackNode(f"node{number}") for number in range(3)]
        for node in nodes:
            job.add(node)
            job.until(lambda: bool(list(tmp_path.glob("node*/board"))), "agents")
        job.until(lambda: bool(job.copied()), "a copy")
        assert all(len(set(memories)) == 2 for memories in job.copied().values())
        for node in nodes[1:]:
            job.kill_worker(node, 1)
        nodes[0].kill()
        job.add(LoopbackNode("another"))
        job.until(job.has_resumed, "that the job goes on")
        (event,) = [event for event in job.outcome.events if "the job goes on from" in event]
        assert "goes on from copies in memory with step" in event
        job.observe(head)
        job.finish()
        job.until_ended()
        last = {row.step: row.loss_or_nan for row in job.outcome.rows}
        alone = train_alone(TINY, 2, 6, STEPS)
        assert [last[step] for step in range(STEPS)] == pytest.approx(alone.losses, rel=1e-9)
        for path, state in saved_models(tmp_path / "saved").items():
            check_close(alone.states[stage_of(path)], state)
    finally:
        job.end()
