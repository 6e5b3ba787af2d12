"""A job ends with the scripts of those who train, whoever is on its way to them."""

from recycle_runtime.coordinator.events import Said
from recycle_runtime.coordinator.state_machine import ENDLESS
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.protocol.messages.generations import AtBoundary, Began, Go
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import ScriptEnded
from tests.runtime.coordinator.fake_job import STATE_BYTES, FakeJob, FakeMember

BACK = Member((2, 0), 0)


class JobWithJoiner(FakeJob):
    """A worker that joins waits for its state, and has no script under way."""

    def _go(self, member: Member, fake: FakeMember, order: Go) -> None:
        if order.donor is None:
            super()._go(member, fake, order)
        else:
            self.happen(Said(member, Began(order.generation, STATE_BYTES, None)))


def test_a_worker_that_is_joining_does_not_keep_a_job_from_its_end() -> None:
    job = JobWithJoiner(ENDLESS, AdaptationOptions(replan=None, ahead=False, recut="off"))
    job.run(3)
    job.kill(BACK.worker)
    job.run(3)
    job.join(BACK.worker)
    job.run(6)
    assert job.coordinator.roster.entries[BACK].is_joining and not job.members[BACK].is_training
    trains = {member: fake for member, fake in job.members.items() if fake.is_training}
    (step,) = {fake.applied for fake in trains.values()}
    assert step is not None and len(trains) == 8
    for member in trains:
        job.happen(Said(member, ScriptEnded(step)))
    for number, member in enumerate(trains):
        assert job.result is None, f"{number} of 8 have come to its end"
        job.happen(Said(member, AtBoundary(step)))
    assert job.result == (None,)
    assert job.rows == list(range(step))
