"""Workers of two processes each train the model that one process trains."""

import dataclasses
from pathlib import Path

import pytest

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_runtime.launcher.local import RunError, RunOptions, run_local
from recycle_runtime.plan.plan_choice import NoFittingPlanError
from tests.compiler.test_sharded import sharded
from tests.runtime.training import compare
from tests.support.jobs import ALL, unit_job

SLICED = str(compare.EXAMPLES / "tensor_parallel.py")
PROGRAMS = Path(__file__).resolve().parent / "programs"
OWN_COLLECTIVES = str(PROGRAMS / "own_collectives.py")
PARALLELIZED = str(PROGRAMS / "parallelized.py")


def job(techniques: Techniques = ALL) -> JobSpec:
    """Two stages, two pipelines, two processes a worker: eight."""
    return dataclasses.replace(unit_job(2, 2, 3, (3, 2), techniques), tensor=2)


@pytest.mark.parametrize("failed", [pytest.param([], marks=pytest.mark.slow), [(1, 0)]], ids=str)
@pytest.mark.parametrize(
    "clip", [pytest.param(0.05, marks=pytest.mark.slow), 5.0, pytest.param(1000.0, marks=pytest.mark.slow)]
)
def test_sliced_layers(tmp_path: Path, failed: compare.Failed, clip: float) -> None:
    """Steps that must all be made again, some of them, and none."""
    program = compare.changed(tmp_path, SLICED, f"CLIP_NORM = {clip}")
    compare.check_on_processes(tmp_path, job(), failed, program)


@pytest.mark.slow
def test_optimizer_state_in_shards(tmp_path: Path) -> None:
    """Ranks own the same shards of their slices, each once; a worker that is alone at its stage owns all."""
    program = compare.changed(tmp_path, SLICED, "CLIP_NORM = 5.0")
    compare.check_on_processes(tmp_path, sharded(job(), 1), [(1, 0)], program)


@pytest.mark.parametrize("failed", [pytest.param([], marks=pytest.mark.slow), [(0, 1)]], ids=str)
@pytest.mark.parametrize(
    "techniques", [ALL, pytest.param(Techniques(True, False, False), marks=pytest.mark.slow)], ids=str
)
def test_collectives_on_every_way(tmp_path: Path, failed: compare.Failed, techniques: Techniques) -> None:
    compare.check_on_processes(tmp_path, job(techniques), failed, OWN_COLLECTIVES)


@pytest.mark.slow
@pytest.mark.parametrize("techniques", [ALL, Techniques(True, False, False)], ids=str)
@pytest.mark.parametrize("ranks", [1, 2])
def test_torchs_own_tensor_parallelism(tmp_path: Path, ranks: int, techniques: Techniques) -> None:
    """By columns and rows, with the sequence and the loss in slices."""
    spread = dataclasses.replace(job(techniques), tensor=ranks)
    compare.check_on_processes(tmp_path, spread, [(1, 0)], PARALLELIZED)


FAILS = """
_build = build_stage

def build_stage(stage, stages, group=None):
    module = _build(stage, stages, group)
    if stage == 1 and group.rank() == 1:
        module.register_forward_pre_hook(fail)
    return module

def fail(*_):
    {how}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise ArithmeticError('no more')", "ArithmeticError: no more"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
    ],
)
def test_a_rank_that_fails_is_named(tmp_path: Path, how: str, said: str) -> None:
    program = compare.changed(tmp_path, SLICED, FAILS.format(how=how))
    options = RunOptions(compare.plan_file(tmp_path, job(), []), program, 3, first_step_timeout=300.0)
    # Both workers of the stage fail; whether the second does before the job has to end is a matter of time.
    with pytest.raises((RunError, NoFittingPlanError), match=r"rank 1 of worker [01]:1[, ].*" + said):
        run_local(options)
