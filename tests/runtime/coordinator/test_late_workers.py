"""Workers that do not leave their group in time, or have just been started: who is waited for."""

from recycle_runtime.coordinator.events import MovesWanted, Said, StopWanted, TimePassed
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.generations import LayerShards, ShardsHeld
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToWorker
from tests.runtime.coordinator.fake_job import FakeJob, FakeMember

ONE, TWO, THREE = (0, 1), (1, 1), (2, 1)
"""All that there are on stage 1."""


class DeafJob(FakeJob):
    """Some workers do not hear orders for a while, as behind a broken network."""

    def __init__(self, failed: tuple[Worker, ...] = ()) -> None:
        self.deaf: tuple[Worker, ...] = ()
        self.unheard: list[tuple[Member, ToWorker]] = []
        super().__init__(100, AdaptationOptions(replan=None), failed=failed)

    def obey(self, member: Member, fake: FakeMember, order: ToWorker) -> None:
        if member.worker in self.deaf:
            self.unheard.append((member, order))
        else:
            super().obey(member, fake, order)

    def lose(self, worker: Worker) -> None:
        """It is killed, and the others hear of it."""
        self.members.pop(Member(worker, 0))
        self.kill(worker)
        self.deliver()

    def listen(self, worker: Worker) -> None:
        """It hears what it has missed."""
        self.deaf = tuple(other for other in self.deaf if other != worker)
        missed, self.unheard = self.unheard, []
        self.mail.extend(missed)
        self.deliver()

    def wait(self, seconds: float = 2 * Patience().leaving) -> None:
        """As it is, longer than anybody should take who is not the last to hold a stage."""
        self.now += seconds
        self.happen(TimePassed())
        self.deliver()

    def live(self) -> set[Worker]:
        return {member.worker for member in self.members}


def regrouping(*deaf: Worker) -> DeafJob:
    """The third worker of stage 1 was killed while these hear nothing."""
    job = DeafJob()
    job.run(5)
    assert {worker for worker in job.live() if worker[1] == 1} == {ONE, TWO, THREE}
    job.deaf = deaf
    job.lose(THREE)
    assert job.coordinator.phase is Phase.GATHERING
    return job


def test_one_with_a_peer_is_given_up() -> None:
    job = regrouping(TWO)
    job.wait()
    assert TWO not in job.live() and ONE in job.live()
    assert job.result is None and job.coordinator.phase is Phase.RUNNING


def with_one_left() -> DeafJob:
    """The last worker of stage 1 does not leave its group, since it does not hear that it should."""
    job = DeafJob(failed=(TWO, THREE))
    job.run(5)
    job.deaf = (ONE,)
    job.kill((1, 0))
    return job


def test_the_last_of_a_stage_is_waited_for() -> None:
    job = with_one_left()
    job.wait(60)
    assert job.result is None and ONE in job.live()
    job.listen(ONE)
    job.run(200)
    assert job.result == (None,) and job.rows == list(range(100))


def test_but_not_for_ever() -> None:
    job = with_one_left()
    job.wait(3000)
    assert job.result == ("every worker of stage 1 has failed: 0:1 did not leave its group",)


def test_a_shard_that_no_other_worker_has_counts_as_a_stage_does() -> None:
    job = DeafJob()
    job.run(5)
    machine, here = job.coordinator, sorted(job.live())
    machine.book.has_shards = True
    for entry in machine.roster.entries.values():
        # As where the coordinator has just been started again.
        entry.shards = None
    assert not machine.can_go_on_with(here)
    for worker in here:
        held = {ONE: (0, 1), TWO: (1, 2), THREE: (0, 2)}.get(worker, (0, 1, 2))
        said = ShardsHeld(machine.number, (LayerShards(worker[1], 3, held),))
        job.happen(Said(Member(worker, 0), said))
    assert machine.can_go_on_with([worker for worker in here if worker != ONE])
    assert not machine.can_go_on_with([worker for worker in here if worker not in (ONE, TWO)])


def test_sizes_of_shards_are_those_of_the_generation_that_runs() -> None:
    """As long as a worker has some on their way to it, nobody sends shards to another cut."""
    job = FakeJob(100, AdaptationOptions(replan=None))
    job.run(5)
    machine, here = job.coordinator, sorted(job.members)

    def say(member: Member, generation: int, sizes: tuple[tuple[int, ...], ...] | None) -> None:
        shards = (LayerShards(member.worker[1], 3, (0, 2)),)
        job.happen(Said(member, ShardsHeld(generation, shards, sizes)))

    for member in here[1:]:
        say(member, machine.number, ((8, 9),))
    say(here[0], machine.number - 1, ((8, 9),))
    say(here[0], machine.number, None)
    assert machine.participants.shards.held() is None
    say(here[0], machine.number, ((8, 9),))
    held = machine.participants.shards.held()
    assert held is not None and held[1, 1] == {(1, 0): 8, (1, 2): 9}
    job.happen(StopWanted("a change"))
    job.run(5)
    assert machine.number > 1 and machine.participants.shards.held() is None


def test_nobody_is_given_up_for_a_peer_that_has_just_been_started() -> None:
    """It has no state: found once, where a job ended because nobody else had that of the stage."""
    job = regrouping(ONE, TWO)
    job.join(THREE)
    job.deliver()
    job.wait()
    assert {ONE, TWO, THREE} <= job.live()
    assert job.result is None and job.coordinator.phase is Phase.GATHERING
    # The first that comes out of its group is one that holds the stage.
    job.listen(TWO)
    job.wait()
    assert ONE not in job.live()
    assert job.result is None and job.coordinator.phase is Phase.RUNNING


def building(worker: Worker, steps: int = 5) -> DeafJob:
    """It was killed after so many steps, and its next process, which hears nothing yet, builds its model."""
    job = DeafJob()
    job.run(steps)
    job.lose(worker)
    job.run(min(steps, 2))
    job.deaf = (worker,)
    job.join(worker)
    job.deliver()
    return job


def test_nobody_waits_for_one_that_still_builds_its_model() -> None:
    """With a GPU that takes ten seconds: found under kills, where each that fell into them cost as much."""
    job = building(THREE)
    job.lose(TWO)
    assert job.coordinator.phase is Phase.RUNNING
    job.run(2)
    assert job.coordinator.assignment is not None and len(job.coordinator.assignment.roles) == 7
    # When it has, it is taken in.
    job.listen(THREE)
    job.run(10)
    assert job.result is None and len(job.coordinator.assignment.roles) == 8


def test_no_worker_moves_to_the_place_of_one_that_still_builds_its_model() -> None:
    job = building(THREE)
    job.happen(MovesWanted({(0, 0): THREE}))
    job.run(4)
    assert (0, 0) in job.live() and job.result is None


def test_the_place_that_a_worker_has_left_is_free() -> None:
    """Found once: it was thought to be there still, and the next one of its name got no role."""
    job = DeafJob()
    job.run(5)
    job.lose(THREE)
    job.run(2)
    job.happen(MovesWanted({(0, 0): THREE}))
    job.run(4)
    assert (0, 0) not in job.live() and THREE in job.live()
    job.deaf = ((0, 0),)
    job.join((0, 0))
    job.deliver()
    job.lose(TWO)
    job.run(2)
    assert job.result is None and job.coordinator.phase is Phase.RUNNING
    job.listen((0, 0))
    job.run(10)
    assert job.coordinator.assignment is not None and len(job.coordinator.assignment.roles) == 8


def beginning(replacement: Worker) -> DeafJob:
    """Before the first step all of stage 1 have been killed, but one whose next process builds its model."""
    job = building(replacement, steps=0)
    for worker in {ONE, TWO, THREE} - {replacement}:
        job.lose(worker)
    return job


def test_at_the_beginning_one_that_builds_its_model_holds_as_much_as_any_other() -> None:
    job = beginning(THREE)
    assert job.result is None and job.coordinator.phase is Phase.GATHERING
    job.listen(THREE)
    job.run(3)
    assert job.result is None and job.rows == [0, 1, 2]
