"""Capacity comes back by itself: on the node where a worker died, and on a spare one."""

import os
import signal
from pathlib import Path

import pytest

from tests.runtime.recovery.nodes import LoopbackNode
from tests.runtime.recovery.several_nodes import SeveralNodes


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_node_are_replaced(tmp_path: Path, wide: str) -> None:
    job = SeveralNodes(tmp_path, wide, 200, LoopbackNode("coordinator"), port=0)
    try:
        nodes = [LoopbackNode(f"node{number}") for number in range(3)]
        for node in nodes:
            job.add(node)
        job.until_steps(5)
        os.kill(job.workers(nodes[1])[0], signal.SIGKILL)
        job.until(lambda: job.live() == 5, "a step of five workers")
        job.until(lambda: job.live() == 6, "six workers again")
        spare, second = LoopbackNode("spare"), LoopbackNode("node0")
        job.add(spare)
        job.add(second)
        # A folder is for one agent.
        job.until(lambda: not second.processes(), "the second agent ends")
        assert "is in use by the agent with process number" in job.said()
        job.until_steps(5)
        assert job.live() == 6 and not job.workers(spare)
        nodes[2].kill()
        job.until(lambda: job.live() == 4, "a step of four workers")
        job.until(lambda: job.live() == 6, "six workers once more")
        assert len(job.workers(spare)) == 2
        assert sum("is started again on" in event for event in job.outcome.events) == 3
        job.finish_and_check()
    finally:
        job.end()
