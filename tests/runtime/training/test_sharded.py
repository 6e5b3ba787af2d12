"""Training with optimizer state in shards gives the parameters of the same training on one process."""

from pathlib import Path

import pytest

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.layout import shared_out
from tests.runtime.training.compare import MLP, Failed, changed, check_in_threads
from tests.support.jobs import figure3

ALL, NONE = Techniques(True, True, True), Techniques(False, False, False)


def _sharded(job: JobSpec, owners: int) -> JobSpec:
    nothing = (0,) * job.stages
    return shared_out(job, owners, (job.pipelines,) * job.stages, nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("owners", "techniques", "failed"),
    [
        (2, ALL, []),
        (2, ALL, [(1, 2), (0, 0)]),
        (2, NONE, []),
        (1, ALL, []),
        (3, ALL, [(1, 2)]),
    ],
    ids=str,
)
def test_running_example(tmp_path: Path, owners: int, techniques: Techniques, failed: Failed) -> None:
    check_in_threads(tmp_path, _sharded(figure3((4, 3, 2, 1), techniques), owners), failed)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_clipping(tmp_path: Path, clip: float) -> None:
    program = changed(tmp_path, MLP, f"CLIP_NORM = {clip}")
    check_in_threads(tmp_path, _sharded(figure3((4, 3, 2, 1)), 2), [(1, 2)], program)
