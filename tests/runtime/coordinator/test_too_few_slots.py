"""Jobs with experts: failures that leave a stage too few slots for them, and what is not planned anew."""

from dataclasses import replace
from functools import cache

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.planner.compile import compile_job
from recycle_runtime.coordinator.events import Order, PlanningFailed, Tell, TimePassed
from recycle_runtime.coordinator.patience import Patience
from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.generations import Go, LayerExperts
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToWorker
from tests.compiler.test_experts import with_experts
from tests.runtime.coordinator.fake_job import HEAVY, FakeJob, FakeMember
from tests.support.jobs import unit_job

EXPERTS = 4
LACK = "on stage 1, 4 experts need as many slots, and 1 worker with 2 slots has 2"


@cache
def bundle() -> Bundle:
    """2 stages x 3 pipelines with two slots each; up to four failures."""
    job = replace(with_experts(unit_job(2, 3, 2)), failures=4)
    return Bundle.parse(bundle_bytes(source="", plans=compile_job(job)))


class ExpertJob(FakeJob):
    """A job whose workers tell how many experts they have, once they have built their layers."""

    def __init__(
        self, plans: Bundle | None = None, experts: int = EXPERTS, *, can_return: bool = True
    ) -> None:
        self.told: list[str] = []
        self._experts = experts
        patience = Patience.beside(60.0, 300.0, can_return=can_return)
        super().__init__(100, AdaptationOptions(), bundle=plans or bundle(), patience=patience)

    def obey(self, member: Member, fake: FakeMember, order: ToWorker) -> None:
        super().obey(member, fake, order)
        if isinstance(order, Go):
            fake.experts = (LayerExperts(None, self._experts),)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, Tell):
            self.told.append(order.text)
        super()._carry_out(order)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.happen(TimePassed())

    @property
    def live(self) -> list[Worker]:
        assignment = self.coordinator.assignment
        assert assignment is not None and self.coordinator.phase is Phase.RUNNING
        return sorted(assignment.roles)


def test_it_waits_and_goes_on_with_the_worker_that_comes_back() -> None:
    job = ExpertJob()
    job.run(3)
    for worker in ((1, 0), (0, 1)):
        job.kill(worker)
        job.run(6)
    assert len(job.live) == 4 and job.told == []
    job.kill((2, 1))
    job.run(5)
    made = list(job.rows)
    assert job.coordinator.phase is Phase.GATHERING and job.result is None
    assert job.told == [f"waits up to 360 s for a worker to come back: {LACK}"]
    # Neither time nor planning that fails ends it, and it is told once.
    job.wait(100.0)
    job.happen(PlanningFailed("recyclec is not installed here"))
    job.wait(100.0)
    assert len(job.told) == 1 and job.result is None and job.rows == made
    job.join((2, 1))
    job.run(5)
    assert job.live == [(0, 0), (1, 1), (2, 0), (2, 1)]
    assert job.rows == list(range(len(job.rows))) and len(job.rows) > len(made)
    # The next wait is another one.
    job.kill((1, 1))
    job.run(1)
    job.wait(300.0)
    assert job.result is None and len(job.told) == 2
    job.join((0, 1))
    job.run(5)
    assert len(job.live) == 4


def test_others_move_there() -> None:
    job = ExpertJob()
    job.run(3)
    job.kill((0, 1))
    job.run(6)
    job.kill((2, 1))
    job.run(5)
    assert job.told == [f"move 0:0 to 0:1: {LACK}"]
    assert job.live == [(0, 1), (1, 0), (1, 1), (2, 0)]
    assert job.rows == list(range(len(job.rows)))


def lacking(job: ExpertJob) -> ExpertJob:
    """Failures on both stages, and nobody to spare."""
    job.run(3)
    for worker in ((1, 0), (0, 1), (2, 1)):
        job.kill(worker)
    job.deliver()
    return job


def test_it_does_not_wait_for_ever() -> None:
    job = lacking(ExpertJob())
    job.wait(300.0)
    assert job.result is None
    job.wait(61.0)
    assert job.result == (f"{LACK}, and no worker came back in 360 s",)


def test_nobody_is_waited_for_where_no_worker_is_started_again() -> None:
    assert lacking(ExpertJob(can_return=False)).result == (LACK,)


def test_nobody_is_waited_for_where_all_together_have_too_few() -> None:
    job = ExpertJob(experts=7)
    job.run(3)
    job.kill((0, 1))
    job.deliver()
    assert job.result == ("on stage 0, 7 experts need as many slots, and 3 workers with 2 slots each have 6",)


def test_nobody_moves_away_from_experts_that_need_all_slots_there() -> None:
    """The only plan for two failures has both on stage 0."""
    heavy = replace(with_experts(parse_job_text(HEAVY, "heavy.job")), failures=2)
    plans = Bundle.parse(bundle_bytes(source="", plans=compile_job(heavy)))
    for experts, moved in ((2, 2), (EXPERTS, 1)):
        job = ExpertJob(plans, experts)
        job.can_plan = False
        job.run(3)
        job.kill((1, 1))
        job.run(3)
        job.kill((2, 2))
        job.run(3)
        assert len(job.moves) == moved
        assert (job.result is None) == (experts == 2)


def test_plans_for_measured_op_times_are_not_made() -> None:
    """Of W only what exchanges leave is measured, and a round takes as long as its slowest worker."""
    job = ExpertJob()
    job.stage_factors = {0: 3.0}
    job.run(60)
    assert job.events == ["plans for measured op times are made where peers share no experts"]
