"""News of a worker whose work raises: told once, and as what it turns out to be."""

import pytest

from recycle_runtime.coordinator.events import Order, Said, Tell
from recycle_runtime.coordinator.programs import ProgramFaults
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.generations import Failed, GroupBroken
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.store_table import REGROUPING
from tests.runtime.coordinator.fake_job import FakeJob

WORDS = "step 5, forward of micro-batch 2: ValueError: too long"


class ToldJob(FakeJob):
    """A job that has made five steps, and keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        super().__init__(20, AdaptationOptions(mtbf=0.001, replan=None))
        self.run(5)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Tell):
            self.told.append(order.text)
        super()._carry_out(order)

    def fail(self, worker: Worker, why: str) -> None:
        self.happen(Said(Member(worker, 0), Failed(5, why, is_injected=False, is_hopeless=False)))


def test_an_error_of_the_program_is_told_when_the_job_ends_and_not_before() -> None:
    """Found once: it was told as a failure of each worker, and then as what ended the job."""
    job = ToldJob()
    job.fail((1, 1), f"worker 1:1, {WORDS}")
    job.deliver()
    assert job.result is None
    job.fail((0, 1), f"worker 0:1, {WORDS}")
    assert job.result == (f"worker 0:1, {WORDS}",) and job.told == []


def test_a_worker_that_alone_raises_is_told_when_the_step_is_made_without_it() -> None:
    job = ToldJob()
    job.fail((1, 1), f"worker 1:1, {WORDS}\n  File ...")
    job.deliver()
    assert job.told == []
    job.run(2)
    assert job.told == [f"1:1 failed: worker 1:1, {WORDS}"] and job.rows[-1] > 5
    job.run(2)
    assert job.result is None and len(job.told) == 1


def test_the_last_workers_of_a_stage_end_the_job_with_the_reason() -> None:
    job = ToldJob()
    for pipeline in (0, 1):
        job.kill((pipeline, 1))
        job.run(1)
    job.fail((2, 1), f"worker 2:1, {WORDS}")
    assert job.result is not None and WORDS in str(job.result[0])
    assert not [text for text in job.told if WORDS in text]


def test_workers_that_hang_in_the_same_step() -> None:
    """One alone is given up if another of its stage can do its work."""
    faults, stage = ProgramFaults(), [(0, 1), (1, 1)]
    assert faults.stuck((0, 1), 3, stage, "stuck") is None
    alike = "workers 0:1, 1:1 got stuck alike, so the program is at fault: stuck"
    assert faults.stuck((1, 1), 3, stage, "stuck") == alike
    assert faults.stuck((0, 1), 4, [(0, 1)], "stuck") == "stuck"
    faults.made(3)
    assert faults.stuck((1, 1), 3, stage, "stuck") is None, "it was made since"


@pytest.mark.parametrize(("why", "is_over"), [(REGROUPING, False), ("connection reset", True)])
def test_a_refusal_of_the_coordinator_before_is_no_failed_meeting(why: str, is_over: bool) -> None:
    """That one was about to regroup. This one knows of the generation alone, and regroups as often as it
    must."""
    job = ToldJob()
    for _ in range(10):
        job.deliver()
        job.happen(Said(Member((1, 1), 0), GroupBroken(job.coordinator.number, why)))
    if is_over:
        assert job.result is not None and "could not talk to each other" in str(job.result[0])
    else:
        job.run(3)
        assert job.result is None and job.rows[-1] > 5
