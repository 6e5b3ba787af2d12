"""Agents that end with whoever has started them, and workers that end with their agent, when asked to."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.runtime.recovery.nodes import LoopbackNode
from tests.runtime.recovery.several_nodes import SeveralNodes

_SHELL = ("sh", "-c", '"$@" & wait', "sh")
"""Stays, as the parent of what it starts."""


def commands(pids: list[int], word: str) -> list[int]:
    """Those of these processes whose command begins with this."""
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(word.encode())]


@pytest.mark.slow
def test_an_agent_is_killed_and_the_parent_of_another(tmp_path: Path, wide: str) -> None:
    job = SeveralNodes(tmp_path, wide, 240, LoopbackNode("coordinator"))
    try:
        nodes = [LoopbackNode(f"node{number}") for number in range(3)]
        job.add(nodes[0], "--end-with-parent")
        job.add(nodes[1], "--end-with-parent", through=_SHELL)
        job.add(nodes[2])
        job.until(lambda: job.live() == 6, "six workers")

        workers = job.workers(nodes[0])
        assert len(workers) == 2
        (agent,) = set(nodes[0].processes()) - set(workers)
        os.kill(agent, signal.SIGKILL)
        job.until_gone(nodes[0])
        job.next_step_after(time.monotonic(), live=4)

        (shell,) = commands(nodes[1].processes(), "sh\0")
        os.kill(shell, signal.SIGKILL)
        job.until_gone(nodes[1])
        job.next_step_after(time.monotonic(), live=2)

        for node in nodes[:2]:
            job.add(node, "--end-with-parent")
        job.until(lambda: job.live() == 6, "six workers again")
        job.finish_and_check()
    finally:
        job.end()
