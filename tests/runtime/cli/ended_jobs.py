"""Folders of jobs that have ended, and coordinators that are started there."""

from pathlib import Path

import pytest

from recycle_runtime.coordinator.journal import FILE, Journal
from recycle_runtime.protocol.framing import TOKEN, new_token
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.observers import JobEnded

ENDS = {
    "well": JobEnded(None, no_plan=False, checkpoint=None, steps=9),
    "badly": JobEnded("the loss is not finite", no_plan=False, checkpoint=None),
    "with a checkpoint": JobEnded(
        "terminated", no_plan=False, checkpoint=CheckpointPath("kept/step-00000004", 4)
    ),
}


def write_end(folder: Path, end: JobEnded | None, **of_job: str) -> None:
    """As a coordinator leaves it."""
    folder.mkdir()
    journal = Journal(folder / FILE)
    journal.write(generation=1, step=0, places=[(0, 0), (0, 1), (1, 0), (1, 1)], **of_job)
    if end is not None:
        journal.write(ended=end)
    journal.close()


def coordinator(plan: str, state: Path, steps: int = 9) -> list[str]:
    """The command for one that plans nothing by itself."""
    argv = ["coordinator", plan, "--steps", str(steps), "--listen", "127.0.0.1:0", "--nodes", "2"]
    return [*argv, "--state", str(state), "--plan-ahead", "off", "--replan", "off"]


def wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator of a job that has ended does not wait for agents to come back."""
    monkeypatch.setenv(TOKEN, new_token())
    monkeypatch.setattr("recycle_runtime.coordinator.attendance.RETURN_SECONDS", 0.0)


def started_again(plan: str, state: Path, monkeypatch: pytest.MonkeyPatch, **of_job: str) -> list[str]:
    """The command for a coordinator in the folder of a job that has ended well, to which nobody comes."""
    wait_for_nobody(monkeypatch)
    write_end(state, ENDS["well"], **of_job)
    return coordinator(plan, state)
