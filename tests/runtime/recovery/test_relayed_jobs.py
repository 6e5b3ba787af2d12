"""Whole jobs whose workers speak to the coordinator through their agents, which are killed too."""

import os
import signal
from pathlib import Path

import pytest

from recycle_runtime.launcher.local import RunOptions, run_local
from tests.runtime.recovery.programs.paces import SLOW
from tests.runtime.recovery.test_node_command import Nodes, check_end
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed


@pytest.mark.slow
def test_a_worker_an_agent_and_the_coordinator_are_killed(tmp_path: Path, square: str) -> None:
    job = Nodes(tmp_path, square, None, "--relay", "on", "--log-level", "info")
    try:
        job.start()
        job.until_steps(5)
        assert job.said().count("through its agent") == 4, job.said()
        os.kill(job.child(0, "coordinator"), signal.SIGKILL)
        job.until(lambda: job.said().count("through its agent") == 8)
        job.until_steps(5)
        regroupings = job.said().count("regroup for generation")
        os.kill(job.child(0, "agent"), signal.SIGKILL)
        job.until(lambda: len(direct(job)) == 2)
        job.until_steps(5)
        # Nobody has left the group for it.
        assert job.said().count("regroup for generation") == regroupings, job.said()
        os.kill(job.workers(1)[0], signal.SIGKILL)
        job.until(lambda: job.said().count("regroup for generation") > regroupings)
        check_end(job, workers=3)
    finally:
        job.end()


def direct(job: Nodes) -> list[str]:
    """Lines of the log about workers that have connected themselves."""
    lines = (line for line in job.said().splitlines() if " rank 0 joins from " in line)
    return [line for line in lines if "through its agent" not in line]


@pytest.mark.slow
def test_a_killed_worker_is_back_through_its_agent(tmp_path: Path, square: str) -> None:
    """It is started again by itself, gets the state of its stage, and trains to the end."""
    program = changed(tmp_path, TINY, SLOW)
    options = RunOptions(square, program, 100, faults=("kill=1:1@5",), relay=True, restarts_workers=True)
    result = run_local(options)
    lives = [row.live for row in result.steps]
    assert min(lives) == 3 and lives[-1] == 4, lives
    expected = train_alone(TINY, 2, 4, 100).losses
    assert [row.loss for row in result.steps] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_one_agent_for_all(tmp_path: Path, square: str) -> None:
    """Of which a worker is killed, and started again while the others may be done before it is there."""
    faults, returns = ("kill=1:1@5",), ("1:1@9",)
    options = RunOptions(square, TINY, 24, faults=faults, returns=returns, relay=True, save=str(tmp_path))
    result = run_local(options)
    assert [row.step for row in result.steps] == list(range(24))
    assert min(row.live for row in result.steps) == 3
    expected = train_alone(TINY, 2, 4, 24).losses
    assert [row.loss for row in result.steps] == pytest.approx(expected, rel=1e-9)
