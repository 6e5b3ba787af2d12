"""Every worker of a stage fails: the job goes on from copies in memory, and reads nothing from a disk."""

from pathlib import Path

import pytest

from tests.runtime.checkpoint.runs import JOB, losses, plans, run, saved, train_in_turns, with_dropout

STEPS = 16
EVERY = 4
UNITS = JOB.pipelines * JOB.microbatches


def went_back(events: list[str]) -> str:
    (found,) = [event for event in events if "the job goes on from" in event]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("faults", [("kill=0:1@11", "kill=1:1@11"), ("kill=0:1@8.copy", "kill=1:1@8.0")])
def test_a_stage_is_lost_and_training_goes_on(tmp_path: Path, faults: tuple[str, ...]) -> None:
    """At some step, and while the next copy is being made."""
    program = with_dropout(tmp_path)
    result, events = run(
        plans(tmp_path / "job.plan", JOB),
        program,
        STEPS,
        neighbour_copies=EVERY,
        max_resumes=1,
        faults=faults,
        save=str(tmp_path),
        heartbeat_timeout=20.0,
    )
    assert "every worker of stage 1 has failed" in went_back(events)
    assert "goes on from copies in memory with step" in went_back(events)
    (cost,) = [event for event in events if event.startswith("copy of step")]
    assert "training paused for" in cost
    alone, states = train_in_turns(program, JOB.stages, [(STEPS, UNITS)])
    found = losses(result)
    assert list(found) == list(range(STEPS))
    assert list(found.values()) == pytest.approx(alone, rel=1e-12)
    for name, state in saved(tmp_path).items():
        stage = int(name.split("-")[2])
        for key, value in states[stage].items():
            assert state[key].sub(value).abs().max() <= 1e-9
