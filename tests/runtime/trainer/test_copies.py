"""A script whose stage is lost: it goes on from copies in memory with what it kept."""

from pathlib import Path

import pytest

from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.protocol.messages.observers import JobEvent, ToObserver
from tests.runtime.trainer.plainly import train_plainly
from tests.runtime.trainer.test_scripts import LOOP, PER_STEP, check, records

STEPS = 14


@pytest.mark.slow
def test_a_stage_is_lost_in_a_job_with_scripts(tmp_path: Path, square: str) -> None:
    events: list[str] = []

    def take(message: ToObserver) -> None:
        if isinstance(message, JobEvent):
            events.append(message.text)

    options = RunOptions(
        bundle=square,
        program="",
        steps=None,
        script=(LOOP, str(tmp_path), str(STEPS), "--evaluate-every", "1", "--sleep", "0.05"),
        faults=("kill=0:1@9", "kill=1:1@9"),
        neighbour_copies=3,
        max_resumes=1,
        heartbeat_timeout=20.0,
        instruction_timeout=600.0,
    )
    result = run_local(options, take)
    assert [row.step for row in result.steps] == list(range(STEPS))
    (event,) = [event for event in events if "the job goes on from" in event]
    assert "from copies in memory with step" in event
    plain = train_plainly(STEPS, PER_STEP)
    for process in records(tmp_path):
        check(process, plain)
