"""Every worker of a stage fails: the job goes on from its newest checkpoint by itself, and not for ever."""

from pathlib import Path

import pytest

from recycle_runtime.launcher.local import RunError
from tests.runtime.checkpoint.runs import FAILED, JOB, losses, plans, run, train_in_turns, with_dropout

STEPS = 12
UNITS = JOB.pipelines * JOB.microbatches
PATIENT = """
_batches = batches

def batches(seed):
    import time
    from pathlib import Path
    for number, batch in enumerate(_batches(seed)):
        while number >= {units} and not any(Path({folder!r}).glob("*/manifest.json")):
            time.sleep(0.01)
        yield batch
"""
"""Data comes no further while no checkpoint is complete: however slow the disk is, a kill comes after it."""


def patient(folder: Path, step: int) -> str:
    """A program whose micro-batches from this step on wait for the first checkpoint."""
    return with_dropout(folder, PATIENT.format(units=step * UNITS, folder=str(folder / "kept")))


def test_a_stage_is_lost_and_training_goes_on(tmp_path: Path) -> None:
    """It ended, and needed a person."""
    program = patient(tmp_path, 7)
    result, events = run(
        plans(tmp_path / "job.plan", JOB, FAILED),
        program,
        STEPS,
        checkpoint=str(tmp_path / "kept"),
        checkpoint_every=4,
        max_resumes=2,
        faults=("kill=0:1@9", "kill=1:1@9"),
        heartbeat_timeout=20.0,
    )
    (gone_back,) = [event for event in events if "the job goes on from" in event]
    assert "every worker of stage 1 has failed" in gone_back and "kept/step-0000000" in gone_back
    alone, _ = train_in_turns(program, JOB.stages, [(STEPS, UNITS)])
    found = losses(result)
    assert list(found) == list(range(STEPS))
    assert list(found.values()) == pytest.approx(alone, rel=1e-12)


@pytest.mark.slow
def test_not_more_often_than_allowed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"every worker of stage 1 has failed: .* resume from it with"):
        run(
            plans(tmp_path / "job.plan", JOB, FAILED),
            patient(tmp_path, 4),
            STEPS,
            checkpoint=str(tmp_path / "kept"),
            checkpoint_every=2,
            max_resumes=1,
            faults=("kill=0:1@5", "kill=1:1@5", "kill=0:1@9", "kill=1:1@9"),
            heartbeat_timeout=20.0,
        )
