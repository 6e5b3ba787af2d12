"""Plans for tests, and what a run must equal."""

from pathlib import Path

import pytest
import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.launcher.local import RunOptions, run_local
from tests.runtime.training.alone import Alone, train_alone
from tests.runtime.training.example_programs import EXAMPLES as EXAMPLES
from tests.runtime.training.example_programs import MLP as MLP
from tests.runtime.training.example_programs import changed as changed
from tests.runtime.training.threads import train_in_threads

STEPS = 5

Failed = list[tuple[int, int]]


def plan_file(folder: Path, job: JobSpec, failed: Failed) -> str:
    return file_of(folder, plan_failed(job, failure_set(failed)))


def file_of(folder: Path, plan: Streams) -> str:
    path = folder / "test.plan"
    write_bundle(path, source="", plans=[plan])
    return str(path)


def check(alone: Alone, losses: list[float], state: dict[str, torch.Tensor], stage: int) -> None:
    assert losses == pytest.approx(alone.losses, rel=1e-10)
    for name, tensor in alone.states[stage].items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)


def check_in_threads(folder: Path, job: JobSpec, failed: Failed, program: str = MLP) -> None:
    check_plan_in_threads(folder, plan_failed(job, failure_set(failed)), program)


def check_plan_in_threads(folder: Path, plan: Streams, program: str = MLP) -> None:
    job = plan.job
    alone = train_alone(program, len(job.chunk_stages), job.pipelines * job.microbatches, STEPS)
    losses, workers = train_in_threads(file_of(folder, plan), program, 0, STEPS)
    for worker in workers.values():
        for chunk, module in worker.modules.items():
            check(alone, losses, module.state_dict(), chunk)


def check_on_processes(folder: Path, job: JobSpec, failed: Failed, program: str = MLP) -> Alone:
    """Over gloo; what was saved, slices put together, is what one process has computed."""
    alone = train_alone(program, job.stages, job.pipelines * job.microbatches, STEPS)
    options = RunOptions(
        plan_file(folder, job, failed),
        program,
        STEPS,
        tuple(failed),
        save=str(folder),
        heartbeat_timeout=20.0,
    )
    result = run_local(options)
    # A worker that failed on the way would leave a file less, and nothing else would tell.
    assert [recovery.causes for recovery in result.recoveries[1:]] == []
    losses = [step.loss_or_nan for step in result.steps]
    saved = sorted(folder.glob("worker-*-0.pt"))
    assert len(saved) == job.pipelines * job.stages - len(failed)
    for path in saved:
        stage = int(path.name.split("-")[2])
        parts = [
            torch.load(path.with_name(f"{path.name[: -len('0.pt')]}{part}.pt"), weights_only=True)["model"]
            for part in range(job.tensor)
        ]
        check(alone, losses, _joined(parts, alone.states[stage]), stage)
    return alone


def _joined(parts: list[dict[str, torch.Tensor]], like: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Slices side by side, along the dimension in which they are too short; the rest is the same on all."""
    whole: dict[str, torch.Tensor] = {}
    for name, tensor in like.items():
        pieces = [part[name] for part in parts]
        sliced = [axis for axis, size in enumerate(tensor.shape) if pieces[0].shape[axis] != size]
        if sliced:
            whole[name] = torch.cat(pieces, sliced[0])
        else:
            assert all(torch.equal(piece, pieces[0]) for piece in pieces)
            whole[name] = pieces[0]
    return whole
