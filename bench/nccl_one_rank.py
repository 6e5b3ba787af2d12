"""The NCCL transport as far as one GPU can show it: `python -m bench.nccl_one_rank`.

1. A communicator of one rank is made the way the transport makes all of them, adds up, and is aborted.
2. A plan of one worker (--plan) trains the MLP over NCCL's transport and over gloo: the same numbers.
3. The workers of any plan (--threads) run as threads on this GPU. NCCL refuses two ranks on a GPU, so
   channels are copies between streams; slots, marks and streams are the transport's own. It must equal one
   process.

Without --plan the compiler makes the plan of one worker. Needs torch, recycle_runtime and the tests beside.
"""

# pyright: reportPrivateImportUsage=false

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid
from recycle_runtime.transport.nccl import (
    CudaComputeStream,
    NcclGroups,
    NcclTransport,
    join_group,
    join_over_nccl,
    set_environment,
)
from tests.runtime.training.alone import train_alone
from tests.runtime.transport.loopback_on_gpu import GpuLoopbackGroups
from tests.runtime.transport.workers import train_over

MLP = str(Path(__file__).resolve().parents[1] / "examples" / "programs" / "mlp.py")
STEPS = 5
PATIENCE = timedelta(seconds=60)


def add_up_alone(device: torch.device) -> None:
    """One rank, through the transport's own set-up."""
    groups, compute = NcclGroups(device, PATIENCE, 1), CudaComputeStream(device)
    group = join_group(groups, compute, dist.HashStore(), 0, 1)
    tensor = torch.arange(1000.0, device=device)
    group.allreduce([tensor]).wait()
    assert torch.equal(tensor.cpu(), torch.arange(1000.0))
    groups.abort([group])


def compare_with_gloo(plan: str, device: torch.device) -> list[float]:
    """A plan of one worker; its losses."""

    def over_nccl(store: dist.Store, grid: Grid, worker: Worker, stream: Sequence[Instruction]) -> Any:
        return join_over_nccl(store, "first", grid, worker, 0, PATIENCE, device, stream)

    def over_gloo(store: dist.Store, grid: Grid, worker: Worker, stream: Sequence[Instruction]) -> Any:
        del stream
        return GlooTransport(store, "first", grid, worker, 0, PATIENCE)

    (losses, ours), (same, theirs) = (
        train_over(join, plan, MLP, STEPS, "cuda") for join in (over_nccl, over_gloo)
    )
    assert losses == same, f"losses differ: {losses} and {same}"
    for worker, trained in ours.items():
        for chunk, module in theirs[worker].modules.items():
            state = trained.modules[chunk].state_dict()
            for name, tensor in module.state_dict().items():
                assert torch.equal(state[name], tensor), f"{name} differs"
    ours[0, 0].transport.close()
    return losses


def compare_threads(plan: str, device: torch.device) -> list[float]:
    """A plan of several workers, all on this GPU; its losses."""
    groups = GpuLoopbackGroups()

    def join(store: dist.Store, grid: Grid, worker: Worker, stream: Sequence[Instruction]) -> Any:
        compute = CudaComputeStream(device)
        return NcclTransport(store, "first", grid, worker, 0, PATIENCE, stream, groups, compute)

    bundle = Bundle.read(plan)
    losses, workers = train_over(join, plan, MLP, STEPS, "cuda")
    alone = train_alone(MLP, bundle.stages, bundle.pipelines * bundle.microbatches, STEPS)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(alone.losses), rtol=1e-6, atol=0.0)
    for worker in workers.values():
        for chunk, module in worker.modules.items():
            for name, tensor in module.state_dict().items():
                torch.testing.assert_close(tensor.cpu(), alone.states[chunk][name], rtol=1e-9, atol=1e-9)
    return losses


def plan_of_one(stack: ExitStack) -> str:
    """Made by the compiler, if it is installed here."""
    try:
        from recycle_compiler.backends.bundle import write_bundle
        from recycle_compiler.planner.compile import plan_failed
        from tests.support.jobs import unit_job
    except ImportError as error:
        raise SystemExit(f"the compiler is not installed ({error}); give --plan FILE of one worker") from None
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "one.plan"
    write_bundle(path, source="", plans=[plan_failed(unit_job(1, 1, 4), ())])
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--plan", metavar="FILE", help="of one stage and one pipeline")
    parser.add_argument(
        "--threads", action="append", default=[], metavar="FILE", help="a plan of several workers"
    )
    arguments = parser.parse_args()
    set_environment()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here")
    device = torch.device("cuda", 0)
    add_up_alone(device)
    print("a communicator of one rank adds up")
    with ExitStack() as stack:
        losses = compare_with_gloo(arguments.plan or plan_of_one(stack), device)
    print(f"one worker, NCCL's transport and gloo's: equal losses {losses}")
    for plan in arguments.threads:
        losses = compare_threads(plan, device)
        print(f"{plan}: {len(Bundle.read(plan).workers(0))} workers as one process: losses {losses}")


if __name__ == "__main__":
    main()
