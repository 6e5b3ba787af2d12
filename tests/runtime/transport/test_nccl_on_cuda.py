"""The NCCL transport on one GPU; the same as `python -m bench.nccl_one_rank`."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bench.nccl_one_rank import add_up_alone, compare_threads, compare_with_gloo, plan_of_one
from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from tests.support.jobs import figure3

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda", 0)


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_a_communicator_of_one_rank() -> None:
    add_up_alone(DEVICE)


@pytest.mark.skipif(not dist.is_nccl_available(), reason="needs NCCL")
def test_one_worker_equals_gloo() -> None:
    with ExitStack() as stack:
        compare_with_gloo(plan_of_one(stack), DEVICE)


@pytest.mark.parametrize("failed", [[], [(1, 2)]])
def test_slots_and_streams_between_threads(tmp_path: Path, failed: list[tuple[int, int]]) -> None:
    path = tmp_path / "figure3.plan"
    write_bundle(path, source="", plans=[plan_failed(figure3((4, 3, 2, 1)), failure_set(failed))])
    compare_threads(str(path), DEVICE)
