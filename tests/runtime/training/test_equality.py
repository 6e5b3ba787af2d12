"""Training with a plan gives the parameters of the same training on one process."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.compiler import plan_failed
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.target import Target
from recycle_runtime.local import RunOptions, run_local
from tests.runtime.training.alone import Alone, train_alone
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import figure3, small_targets

MLP = str(Path(__file__).resolve().parents[3] / "examples" / "programs" / "mlp.py")
CLIPPED = """
from pathlib import Path
source = Path({path!r}).read_text()
exec(compile(source, {path!r}, "exec"))
CLIP_NORM = {clip}
"""
STEPS = 5


def plan_file(folder: Path, job: JobSpec, failed: list[tuple[int, int]]) -> str:
    path = folder / "test.plan"
    write_bundle(path, source="", programs=[plan_failed(job, failure_set(failed))])
    return str(path)


def check(alone: Alone, losses: list[float], state: dict[str, torch.Tensor], stage: int) -> None:
    assert losses == pytest.approx(alone.losses, rel=1e-10)
    for name, tensor in alone.states[stage].items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)


def check_in_threads(folder: Path, job: JobSpec, failed: list[tuple[int, int]], program: str = MLP) -> None:
    alone = train_alone(program, job.stages, job.pipelines * job.microbatches, STEPS)
    losses, workers = train_in_threads(plan_file(folder, job, failed), program, 0, STEPS)
    for (_, stage), worker in workers.items():
        check(alone, losses, worker.module.state_dict(), stage)


@pytest.mark.parametrize("failed", [[], [(1, 2)], [(1, 2), (0, 0)], [(1, 2), (0, 0), (2, 2)]])
def test_running_example_on_processes(tmp_path: Path, failed: list[tuple[int, int]]) -> None:
    job = figure3((4, 3, 2, 1))
    alone = train_alone(MLP, job.stages, job.pipelines * job.microbatches, STEPS)
    options = RunOptions(plan_file(tmp_path, job, failed), MLP, STEPS, tuple(failed), save=str(tmp_path))
    result = run_local(options)
    losses = [step.loss for step in result.steps]
    saved = sorted(tmp_path.glob("worker-*.pt"))
    assert len(saved) == 12 - len(failed)
    for path in saved:
        content = torch.load(path, weights_only=True)
        check(alone, losses, content["model"], int(path.name.split("-")[2]))


TECHNIQUES = [Techniques(bool(n & 1), bool(n & 2), bool(n & 4)) for n in range(8)]


@pytest.mark.parametrize("techniques", TECHNIQUES, ids=str)
@pytest.mark.parametrize("failed", [[], [(1, 2)], [(1, 2), (0, 0)], [(1, 2), (0, 0), (2, 2)]])
def test_running_example(tmp_path: Path, techniques: Techniques, failed: list[tuple[int, int]]) -> None:
    check_in_threads(tmp_path, figure3((4, 3, 2, 1), techniques), failed)


@pytest.mark.parametrize("clip", [0.5, 2.0, 1000.0])
def test_clipping(tmp_path: Path, clip: float) -> None:
    """Early steps that must be made again, some of them or all, end where a barrier would have."""
    program = tmp_path / "clipped.py"
    program.write_text(CLIPPED.format(path=MLP, clip=clip))
    check_in_threads(tmp_path, figure3((4, 3, 2, 1)), [(1, 2)], str(program))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(target=small_targets().filter(lambda target: all(target.hosts)), data=st.data())
def test_random_plans(tmp_path: Path, target: Target, data: st.DataObject) -> None:
    del data
    check_in_threads(tmp_path, target.job, [(worker.pipeline, worker.stage) for worker in target.failed])
