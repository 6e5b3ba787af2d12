"""Whole runs over a transport whose calls stand until another thread aborts them, as NCCL's do.

A killed worker breaks gloo's sockets, by which the few numbers of all workers travel, and nothing else:
messages and sums of the others stand.
"""

from pathlib import Path

import pytest

from recycle_runtime.plan.assembly import Worker
from tests.runtime.recovery.test_distributed_runs import PARALLELIZED, two_by_two
from tests.runtime.recovery.test_every_instruction import PLACES, kill_everywhere
from tests.runtime.recovery.watched import TINY, disturbed, run
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

ROOT = str(Path(__file__).resolve().parents[3])
STANDING = f"""
import sys

sys.path.append({ROOT!r})
from recycle_runtime.transport.nccl import NcclTransport
from recycle_runtime.worker import engine
from tests.runtime.transport.standing import HostQueues, StandingLibrary

_LIBRARY, _QUEUES = StandingLibrary(), HostQueues()


def _connect(store, grid, worker, tp_rank, stream, device, timeout, standstill, prove):
    return NcclTransport(store, "first", grid, worker, tp_rank, timeout, stream, _LIBRARY, _QUEUES, prove)


engine.connect = _connect
"""


@pytest.fixture
def standing(tmp_path: Path) -> str:
    return changed(tmp_path, TINY, STANDING)


def kill_and(kind: str, folder: Path, bundle: str, program: str) -> None:
    """One worker is killed in the middle of a step and comes back; later something becomes of another."""
    faults, returns = ["kill=1:1@3.5", f"{kind}=1:0@40.7"], ["1:1@5", "1:0@45"]
    outcome = disturbed(folder, bundle, 60, faults, returns, program, heartbeat_timeout=4.0)
    assert len(outcome.faults) == 2


def test_a_kill_and_a_stop(tmp_path: Path, square: str, standing: str) -> None:
    kill_and("stop", tmp_path, square, standing)


def test_a_kill_of_a_tensor_parallel_rank(tmp_path: Path) -> None:
    """Those of healthy workers stand in collectives of the program, or begin one, when all is aborted."""
    program, steps = changed(tmp_path, PARALLELIZED, STANDING), 12
    outcome = run(tmp_path / "run", two_by_two(tmp_path, (2, 3)), program, steps, ["kill=1:1@3.5"])
    assert (outcome.error, outcome.rows[-1].live) == (None, 3)
    alone = train_alone(PARALLELIZED, 1, 4, steps, cut=(5,))
    assert [row.loss_or_nan for row in outcome.rows] == pytest.approx(alone.losses, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exception", "exit"])
def test_a_kill_and_another_fault(tmp_path: Path, square: str, standing: str, kind: str) -> None:
    kill_and(kind, tmp_path, square, standing)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_each_instruction(tmp_path: Path, square: str, standing: str, place: Worker) -> None:
    kill_everywhere(tmp_path, square, standing, place)


@pytest.mark.slow
def test_each_instruction_with_barriers(tmp_path: Path, square_with_barrier: str, standing: str) -> None:
    kill_everywhere(tmp_path, square_with_barrier, standing, (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["meet", "leave", "settle"])
def test_moments_between_instructions(tmp_path: Path, square: str, standing: str, moment: str) -> None:
    faults = ["kill=0:1@2.3", f"kill=1:0@2.{moment}"]
    disturbed(tmp_path, square, 80, faults, ["0:1@4", "1:0@8"], standing)
