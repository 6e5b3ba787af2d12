"""A run that several tests go on from."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.runtime.checkpoint.runs import FAILED, JOB, plans, run, with_dropout


class Stopped(NamedTuple):
    """After five steps."""

    kept: Path
    """Its checkpoints."""
    bundle: str
    """Plans for no failures, and for `FAILED`."""
    program: str


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    folder = tmp_path_factory.mktemp("stopped")
    bundle, program = plans(folder / "job.plan", JOB, FAILED), with_dropout(folder)
    _, events = run(bundle, program, 5, checkpoint=str(folder / "kept"), checkpoint_every=2)
    assert events[0].startswith("checkpoint of step 2: ")
    assert events[-1] == f"checkpoint of step 5: {folder / 'kept' / 'step-00000005'}"
    return Stopped(folder / "kept", bundle, program)
