"""The coordinator is gone for a while, comes back elsewhere, or finds nobody when it is back."""

import time
from pathlib import Path

import pytest

from tests.runtime.recovery.nodes import LoopbackNode
from tests.runtime.recovery.several_nodes import SeveralNodes
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone


def start(job: SeveralNodes) -> list[LoopbackNode]:
    nodes = [LoopbackNode(f"node{number}") for number in range(3)]
    for node in nodes:
        job.add(node)
    job.until_steps(8)
    return nodes


@pytest.mark.slow
def test_it_comes_back_elsewhere_after_more_than_half_a_minute(tmp_path: Path, wide: str) -> None:
    head = LoopbackNode("coordinator")
    job = SeveralNodes(tmp_path, wide, 4000, head, port=0)
    try:
        start(job)
        port = job.port
        head.kill()
        (job.state / "address").unlink()
        time.sleep(35.0)
        job.coordinate(head)
        job.until(lambda: (job.state / "address").exists(), "another coordinator listens")
        assert job.port != port
        job.observe(head, job.step())
        job.until_steps(50)
        assert job.live() == 6
        job.listen()
        losses = [row.loss for row in job.outcome.rows]
        assert [row.step for row in job.outcome.rows] == list(range(len(losses)))
        assert losses == pytest.approx(train_alone(TINY, 2, 6, len(losses)).losses, rel=1e-9)
    finally:
        job.end()


@pytest.mark.slow
def test_it_finds_nobody_and_begins_again_from_the_checkpoint(tmp_path: Path, wide: str) -> None:
    head = LoopbackNode("coordinator")
    job = SeveralNodes(tmp_path, wide, 60, head, port=0, checkpoint=tmp_path / "kept")
    try:
        nodes = start(job)
        for node in (head, *nodes):
            node.kill()
        (job.state / "address").unlink()
        job.coordinate(head)
        job.until((job.state / "resumed-1").exists, "the job goes on from its checkpoint")
        for node in nodes:
            job.add(node)
        time.sleep(1.0)
        job.observe(head)
        job.finish()
        rows = {row.step: row.loss for row in job.outcome.rows}
        assert job.outcome.error is None
        assert list(rows.values()) == pytest.approx(train_alone(TINY, 2, 6, 60).losses, rel=1e-9)
    finally:
        job.end()
