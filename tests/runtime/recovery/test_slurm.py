"""The scripts of `recyclec launch slurm` on a real Slurm. How long things took: `pytest -s` shows it."""

import os
import signal
import stat
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.runtime.recovery.slurm import Slurm, SubmittedJob, why_no_slurm


@pytest.fixture
def slurm(tmp_path: Path) -> Generator[Slurm]:
    if (why := why_no_slurm()) is not None:
        pytest.skip(why)
    made = Slurm(tmp_path, 4)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.slow
def test_a_worker_and_two_nodes_are_lost(slurm: Slurm, tmp_path: Path, square: str) -> None:
    """One of them is the coordinator's. Slurm starts what was there elsewhere, without a human."""
    job = SubmittedJob(slurm, tmp_path, square, 1500, pace=0.2)
    job.until_steps(5, 4)
    assert stat.S_IMODE((job.run / "token").stat().st_mode) == 0o600

    os.kill(job.a_worker(slurm.nodes[job.node_of(job.agent(0))]), signal.SIGKILL)
    _print("a worker killed, four workers again", job.until_steps(2, 4))

    lost, first = job.node_of(job.agent(1)), job.node_of(job.coordinator)
    slurm.crash(lost)
    _print("a node killed, the next step", job.until_steps(1, 2))
    slurm.crash(first)
    began = time.monotonic()
    made, before = len(job.rows()), (job.run / "coordinator" / "address").read_text()
    for each in (job.agent(1), job.coordinator):
        job.until_state(each, "PENDING")
    slurm.boot(lost)
    job.until(lambda: (job.run / "coordinator" / "address").read_text() != before, "another coordinator")
    job.until_steps(1, 2)
    _print("the coordinator's node killed, it is back elsewhere", time.monotonic() - began)
    assert len(job.rows()) > made + 10, "workers have trained on meanwhile"
    job.until_steps(1, 4)
    _print("four workers again", time.monotonic() - began)
    assert job.node_of(job.agent(1)) != lost or job.node_of(job.coordinator) != first

    job.set_pace(0.0)
    for each in (job.coordinator, job.agent(0), job.agent(1)):
        job.until_state(each, "COMPLETED")
    assert (job.run / "over").read_text() == "0\n"
    assert len(job.rows()) == 1500
    job.check_losses()


@pytest.mark.slow
def test_the_coordinator_is_requeued_and_a_time_limit_comes(
    slurm: Slurm, tmp_path: Path, square: str
) -> None:
    """Over TLS."""
    job = SubmittedJob(slurm, tmp_path, square, 100_000, "--time=4", pace=0.05, launch=["--tls"])
    assert (tmp_path / "job.sh").read_text().count("--tls") == 2
    job.until_steps(10, 4)
    slurm.call("scontrol", "requeue", job.coordinator)
    # Told to end, it takes a checkpoint; then it starts anew, with other agents and another time limit.
    job.until((job.run / "coordinator.before-1").exists, "another start")
    _print("coordinator requeued, the next step", job.until_steps(1, 4))
    job.until((job.run / "over").exists, "the time limit")
    assert (job.run / "over").read_text() == f"{128 + signal.SIGTERM}\n"
    made = len(job.rows())
    assert (tmp_path / "kept" / f"step-{made:08d}").is_dir(), job.said()
    job.check_losses()


def _print(what: str, seconds: float) -> None:
    print(f"\n{what}: {seconds:.1f} s")
