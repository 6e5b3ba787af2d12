"""Processes that do not come out of their group: given up while their stage has others, else waited for."""

from recycle_runtime.coordinator.events import TimePassed
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.generations import Leave
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToWorker
from tests.runtime.coordinator.fake_job import FakeJob

STEPS = 30
ALONE = AdaptationOptions(mtbf=0.001, replan=None)


class DeafJob(FakeJob):
    """Some members do not hear that they should leave."""

    stuck: frozenset[Worker] = frozenset()

    def order(self, member: Member, message: ToWorker) -> None:
        if member.worker not in self.stuck:
            super().order(member, message)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.happen(TimePassed())
        self.deliver()


def test_one_of_several_is_given_up() -> None:
    job = DeafJob(STEPS, ALONE)
    job.run(5)
    job.stuck = frozenset({(0, 1)})
    job.kill((1, 0))
    job.wait(5)
    assert Member((0, 1), 0) in job.members
    job.wait(15)
    assert Member((0, 1), 0) not in job.members
    # Somebody may move there, who hears well.
    job.stuck = frozenset()
    job.run(2 * STEPS)
    assert job.result == (None,) and job.rows == list(range(STEPS))


def test_the_last_of_a_stage_is_waited_for() -> None:
    job = DeafJob(STEPS, ALONE, failed=((1, 1), (2, 1)))
    job.run(5)
    job.stuck = frozenset({(0, 1)})
    job.kill((1, 0))
    job.wait(60)
    assert job.result is None and Member((0, 1), 0) in job.members
    job.stuck = frozenset()
    job.order(Member((0, 1), 0), Leave(job.coordinator.number))
    job.run(2 * STEPS)
    assert job.result == (None,) and job.rows == list(range(STEPS))


def test_but_not_for_ever() -> None:
    job = DeafJob(STEPS, ALONE, failed=((1, 1), (2, 1)))
    job.run(5)
    job.stuck = frozenset({(0, 1)})
    job.kill((1, 0))
    job.wait(3000)
    assert job.result == ("every worker of stage 1 has failed: 0:1 did not leave its group",)
