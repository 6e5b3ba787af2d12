"""Plans over NCCL's and shared memory's transports, without a GPU: the parameters of one process."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.plan.message_counts import most_waiting
from recycle_runtime.transport.cuda_ipc import CudaIpcTransport
from recycle_runtime.transport.interface import Grid
from recycle_runtime.transport.nccl import NcclTransport
from tests.runtime.training.alone import train_alone
from tests.runtime.transport.shared_host import SharedHost
from tests.runtime.transport.standing import PATIENCE, HostQueues, StandingLibrary
from tests.runtime.transport.workers import Join, train_over
from tests.support.jobs import figure3

PROGRAMS = Path(__file__).resolve().parents[3] / "examples" / "programs"
MLP = str(PROGRAMS / "mlp.py")
GROWING = """
from pathlib import Path
source = Path({path!r}).read_text()
exec(compile(source, {path!r}, "exec"))

def batches(seed):
    generator = torch.Generator().manual_seed(seed)
    for number in range(1_000_000):
        rows = (2, 5, 3, 40, 1, 7)[(number // 5) % 6]
        points = torch.randn(rows, FEATURES, dtype=torch.float64, generator=generator)
        yield points, points.sin().sum(dim=1, keepdim=True)
"""
STEPS = 3
FAILED = [[], [(1, 2), (0, 0), (2, 2)]]
_PATIENCE = timedelta(seconds=PATIENCE)


def over_nccl(*, sends_wait: bool = False) -> Join:
    library = StandingLibrary()

    def join(store: dist.Store, grid: Grid, worker: Worker, stream: Sequence[Instruction]) -> Any:
        queues = HostQueues(sends_wait=sends_wait)
        return NcclTransport(store, "first", grid, worker, 0, _PATIENCE, stream, library, queues)

    return join


def over_shared_memory(device: SharedHost) -> Join:
    def join(store: dist.Store, grid: Grid, worker: Worker, stream: Sequence[Instruction]) -> Any:
        waiting = most_waiting(stream, grid.pipelines)
        return CudaIpcTransport(store, "first", grid, worker, 0, _PATIENCE, device, waiting)

    return join


def check(join: Join, folder: Path, failed: list[tuple[int, int]], program: str = MLP) -> None:
    job = figure3((4, 3, 2, 1))
    path = folder / "test.plan"
    write_bundle(path, source="", plans=[plan_failed(job, failure_set(failed))])
    alone = train_alone(program, job.stages, job.pipelines * job.microbatches, STEPS)
    losses, workers = train_over(join, str(path), program, STEPS)
    assert len(workers) == 12 - len(failed)
    assert losses == pytest.approx(alone.losses, rel=1e-10)
    for (_, stage), worker in workers.items():
        for name, tensor in alone.states[stage].items():
            torch.testing.assert_close(
                worker.modules[stage].state_dict()[name], tensor, rtol=1e-10, atol=1e-10
            )


@pytest.fixture
def growing(tmp_path: Path) -> str:
    """Micro-batches of several lengths, the longest not at first."""
    path = tmp_path / "growing.py"
    path.write_text(GROWING.format(path=MLP))
    return str(path)


def test_nccl(tmp_path: Path) -> None:
    check(over_nccl(), tmp_path, [(1, 2), (0, 0)])


@pytest.mark.parametrize("failed", FAILED)
def test_nccl_even_if_every_send_waits_for_its_receive(tmp_path: Path, failed: list[tuple[int, int]]) -> None:
    check(over_nccl(sends_wait=True), tmp_path, failed)


@pytest.mark.parametrize("failed", FAILED)
def test_shared_memory(tmp_path: Path, failed: list[tuple[int, int]]) -> None:
    check(over_shared_memory(SharedHost()), tmp_path, failed)


@pytest.mark.parametrize("join", [over_nccl, lambda: over_shared_memory(SharedHost())])
def test_messages_that_grow(tmp_path: Path, growing: str, join: Callable[[], Join]) -> None:
    check(join(), tmp_path, [(1, 2)], growing)
