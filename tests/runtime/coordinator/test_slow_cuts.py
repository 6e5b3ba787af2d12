"""A slow worker in a job in layers: its stage gets fewer layers, and the old ones back once it is well."""

from functools import cache
from pathlib import Path

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.failure import Worker as Place
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.layout import absent_cells, job_of_layout, parse_layout
from recycle_compiler.planner.compile import plan_failed, plan_slow
from recycle_compiler.scheduling.slow_workers import slow_workers
from recycle_runtime.coordinator.events import EndMove, Order, Said
from recycle_runtime.coordinator.layer_move import cells_of
from recycle_runtime.coordinator.replanning import ChosenCut, Offer, Variant
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import Assignment
from recycle_runtime.plan.recut import least_bytes
from recycle_runtime.protocol.messages.generations import Began, Copied, Go
from recycle_runtime.protocol.messages.layer_moves import LayersArrived, MoveLayers
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.wire import ToWorker
from tests.runtime.coordinator.fake_job import SLOT, FakeJob, FakeMember
from tests.runtime.coordinator.in_process import InProcess

SOURCE = """\
job slow {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  layers   { count = 6  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 1 }
}
"""
LAYOUT = "2x2,4x2"
SLOW = (1, 1)
"""The worker; its place under the other cut is 1:0."""


@cache
def own_bundle() -> Bundle:
    job = parse_job_text(SOURCE, "slow.job")
    plans = [plan_failed(job, failure_set(failed)) for failed in ((), ((1, 0),), ((1, 1),))]
    return Bundle.parse(bundle_bytes(source=SOURCE, plans=plans))


@cache
def cut_bundles() -> tuple[Bundle, Bundle]:
    """Of the other cut: for workers of equal speed, and for a slow one."""
    layout = parse_layout(LAYOUT)
    derived = job_of_layout(parse_job_text(SOURCE, "slow.job"), layout)
    absent = absent_cells(derived, layout)
    equal = plan_failed(derived, absent)
    slow = plan_slow(derived, absent, slow_workers([(Place(1, 0), 3.0)])).streams
    both = (Bundle.parse(bundle_bytes(source="", plans=[plan])) for plan in (equal, slow))
    return next(both), next(both)


class WithCut(InProcess):
    """One more offer, of another cut."""

    saving = 0.6

    def made(self) -> list[Offer] | None:
        offers = super().made()
        if offers and self.slow:
            equal, slow = cut_bundles()
            cut = ChosenCut(LAYOUT, (((1, 0), 3.0),), ((Path("equal"), equal),))
            variant = Variant(Path("cut"), (), lighter=self.slow, is_recut=True)
            offers.append(Offer(variant, slow, self.saving, cut))
        return offers


class LayeredJob(FakeJob):
    """Its members say what each layer takes, and take layers at once."""

    doomed_after = -1
    """Arrivals of layers after which the slow worker is killed."""
    moves_ended: tuple[str | None, ...] = ()

    def times(self, place: Worker, assignment: Assignment) -> dict[str, float]:
        stage = self.coordinator.cells.stage(place)
        assert stage is not None
        seconds = SLOT * self.coordinator.book.cut[stage] * self.slow.get(place, 1.0)
        return {**dict.fromkeys("FIW", seconds), "O": seconds / 10, "R": 1e-4}

    def obey(self, member: Member, fake: FakeMember, order: ToWorker) -> None:
        if isinstance(order, MoveLayers) and order.takes:
            self.happen(Said(member, LayersArrived(order.generation, order.move, Copied(1000, 0.001))))
            self.doomed_after -= 1
            if self.doomed_after == 0:
                self.kill(SLOW)
        super().obey(member, fake, order)

    def _carry_out(self, order: Order) -> None:
        if isinstance(order, EndMove):
            self.moves_ended = (*self.moves_ended, order.why)
        super()._carry_out(order)

    def began(self, member: Member, order: Go, copied: Copied | None) -> Began:
        stage = self.coordinator.cells.stage(member.worker)
        assert stage is not None
        cut = self.coordinator.book.cut
        return Began(order.generation, 1000, copied, (100,) * cut[stage], sum(cut[:stage]))


def job_with(replanner: WithCut, options: AdaptationOptions | None = None) -> LayeredJob:
    job = LayeredJob(2000, options or AdaptationOptions(replan_every=20), replanner, bundle=own_bundle())
    replanner.book, replanner.files = job.book, job.files
    return job


def layout_of(job: LayeredJob) -> tuple[int, ...]:
    return job.coordinator.book.cut


def test_its_stage_gets_fewer_layers_until_it_is_well_again() -> None:
    job = job_with(WithCut())
    job.slow = {SLOW: 3.0}
    job.run(100)
    assert layout_of(job) == (2, 4)
    cells = job.coordinator.cells
    assert cells.of(SLOW) == (1, 0), "it stands where its plan has it"
    assignment = job.coordinator.assignment
    assert assignment is not None and cells.book.slow_in(assignment) == {(1, 0): 3.0}
    taken = [event for event in job.events if event.endswith(f"taken, with layout {LAYOUT}")]
    assert len(taken) == 1 and taken[0].startswith("1:1 takes 3.0 times as long as its peers: ")
    assert f"layout {LAYOUT} saves 60.0 % of " in taken[0]
    seen = len(job.events)
    job.run(300)
    assert (layout_of(job), job.events[seen:]) == ((2, 4), []), "as long as it is slow, that is how it stays"
    job.slow = {}
    job.run(300)
    assert layout_of(job) == (3, 3)
    assert job.rows == list(range(len(job.rows)))


@pytest.mark.parametrize(("arrivals", "why"), [(1, "not all layers have arrived"), (3, "1:1 is gone")])
def test_a_worker_fails_while_layers_travel(arrivals: int, why: str) -> None:
    """Training goes on under the cut there is."""
    job = job_with(WithCut())
    job.slow = {SLOW: 3.0}
    job.doomed_after = arrivals
    while not job.moves_ended:
        job.run(1)
    made = len(job.rows)
    job.run(5)
    assert job.coordinator.participants.layer_moves.move is None
    assert (job.moves_ended, layout_of(job)) == ((why,), (3, 3))
    assert job.coordinator.is_steady and job.rows == list(range(len(job.rows))) and len(job.rows) > made


def test_what_it_saves_beyond_a_lighter_load_has_to_be_worth_it() -> None:
    replanner = WithCut()
    replanner.saving = 0.45
    job = job_with(replanner)
    job.slow = {SLOW: 3.0}
    job.run(200)
    assert layout_of(job) == (3, 3)
    assert job.events[-1].endswith("taken, with a lighter load")


def test_it_is_left_out_where_no_layers_may_travel() -> None:
    replanner = WithCut()
    job = job_with(replanner, AdaptationOptions(replan_every=20, recut="off"))
    job.slow = {SLOW: 3.0}
    job.run(100)
    assert replanner.sources == {""}


def test_settled_workers_take_the_stage_that_is_meant_for_them() -> None:
    held = {(0, 0): (0, 3), (1, 0): (0, 3), (0, 1): (3, 6), (1, 1): (3, 6)}
    way = least_bytes(held, (2, 4), (2, 2), [1] * 6, settled={SLOW: 0})
    assert way.stages[SLOW] == 0 and sorted(way.stages.values()) == [0, 0, 1, 1]
    assert {transfer.joiner for transfer in way.transfers} >= {SLOW}
    with pytest.raises(ValueError, match="settled"):
        least_bytes(held, (2, 4), (1, 3), [1] * 6, settled={SLOW: 0, (0, 0): 0})


def test_others_stand_around_those_who_have_places() -> None:
    stages = {(0, 0): 0, (1, 1): 0, (1, 0): 1, (0, 1): 1}
    cells = cells_of(stages, {SLOW: (0, 0)})
    assert cells == {(1, 1): (0, 0), (0, 0): (1, 0), (0, 1): (0, 1), (1, 0): (1, 1)}
