"""Places of workers: under the job's own cut where their names say, else where they help most."""

from pathlib import Path

from recycle_runtime.coordinator.cells import Cells
from recycle_runtime.coordinator.layer_move import LayerMove, cells_of
from recycle_runtime.coordinator.plans import Request, request_for
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.on_demand import plan_arguments
from recycle_runtime.plan.plan_book import Assignment, PlanBook, plan_name
from recycle_runtime.plan.recut import NOTHING, least_bytes
from recycle_runtime.protocol.messages.generations import HeldState
from recycle_runtime.protocol.messages.layer_moves import LayersToMove, MoveLayers
from recycle_runtime.protocol.messages.members import Member
from tests.runtime.recovery.plans_for_tests import fake_bundle


def family() -> PlanBook:
    """Three pipelines of two stages; and a cut of four layers and two, for five workers and six cells."""
    other = fake_bundle(2, 3, [[(2, 1)], [(1, 1), (2, 1)]], (4, 2))
    return PlanBook(fake_bundle(2, 3, [[], [(2, 1)]], (3, 3), recuts=(other,)))


def test_books_of_a_family_share_their_numbers() -> None:
    own = family()
    assert [book.cut for book in own.family] == [(3, 3), (4, 2)]
    other = own.family[1]
    assert other.bundles is own.bundles
    assert other.with_bundle(0) is own and own.with_bundle(1) is other
    added = own.add(fake_bundle(2, 3, [[(0, 0), (2, 1)]], (4, 2)))
    assert added == 2 and own.with_bundle(added) is other
    assert list(other.layouts()) == [((3, 2), 101), ((3, 1), 102), ((2, 2), 102)]
    third = own.add(fake_bundle(1, 6, [[]], (6,)))
    assert own.with_bundle(third).cut == (6,)


def in_halves(cut: tuple[int, ...], failed: list[tuple[int, int]]) -> Bundle:
    split = fake_bundle(2, 3, [failed], cut)
    split.__dict__["microbatches"] *= 2
    return split


def test_plans_that_split_micro_batches_have_a_book_of_their_own() -> None:
    own = family()
    other, halves = own.family[1], own.with_bundle(own.add(in_halves((4, 2), [(2, 1)])))
    assert halves not in (own, other)
    assert (own.split, other.split, halves.split) == (1, 1, 2)
    assert list(halves.layouts()) == [((3, 2), 101)]
    assert plan_name(halves, Assignment(2, 0, {}, 0, 1)) == "4x3,2x2 in halves"
    same_cut = own.with_bundle(own.add(in_halves((3, 3), [])))
    assert not same_cut.is_own and same_cut.split == 2


def test_a_plan_on_demand_is_asked_for_under_the_cut_and_the_split_of_its_book() -> None:
    own = family()
    halves = own.with_bundle(own.add(in_halves((4, 2), [(2, 1)])))
    failed = ((0, 0), (2, 1))
    assert request_for(own, failed) == Request(failed)
    assert request_for(own.family[1], failed) == Request(((2, 0),), "4x3,2x2")
    asked = request_for(halves, failed)
    assert asked == Request(((2, 0),), "4x3,2x2", split=True)
    words = plan_arguments("-", asked.failed, layout=asked.layout, split=asked.split, out=Path("x.plan"))
    assert words == ["plan", "-", "--layout", "4x3,2x2", "--split", "--failed", "2:0", "-o", "x.plan"]


def test_the_name_of_a_plan_of_another_cut_is_its_layout() -> None:
    own = family()
    assert plan_name(own, Assignment(0, 1, {}, 0, 1)) == "0 1"
    assert plan_name(own.family[1], Assignment(1, 0, {}, 0, 1)) == "4x3,2x2"


def test_workers_stand_where_their_names_say() -> None:
    cells = Cells(family())
    cells.place([(0, 0), (1, 1)])
    assert cells.is_plain
    assert cells.held([(0, 0), (1, 1), (2, 0)]) == {(0, 0): (0, 3), (1, 1): (3, 6), (2, 0): NOTHING}
    cells.drop((1, 1))
    assert cells.of((1, 1)) is None and cells.stage((1, 1)) == 1


def test_under_another_cut_they_stand_where_there_is_room() -> None:
    own = family()
    cells = Cells(own)
    stages = {(0, 0): 0, (1, 0): 0, (2, 0): 0, (0, 1): 1, (2, 1): 1}
    cells.switch(own.family[1], cells_of(stages))
    assert not cells.is_plain
    assert cells.of((2, 1)) == (1, 1)
    assert cells.stage((1, 1)) is None
    cells.place([(1, 1)])
    assert cells.of((1, 1)) == (2, 1)
    assert not cells.has_room((3, 1)), "all six cells are taken"
    cells.place([(3, 1)])
    assert cells.of((3, 1)) is None


def move() -> LayerMove:
    own = family()
    held = {(p, s): (3 * s, 3 * s + 3) for p in range(3) for s in range(2)}
    del held[1, 1]
    return LayerMove(own.family[1], least_bytes(held, (4, 2), (3, 2), [1] * 6), "4x3,2x2", 1.0)


def test_what_processes_are_told() -> None:
    found = move()
    members = [Member(worker, rank) for worker in found.cells for rank in range(2)]
    found.begin(3, members, now=5.0)
    assert found.missing == {Member((p, 0), rank) for p in range(3) for rank in range(2)}
    orders = found.orders(7, members)
    taken = orders[Member((0, 0), 1)]
    assert taken == MoveLayers(7, 3, (), (LayersToMove(taken.takes[0].worker, 3, 4),))
    gives = [given.worker for at in ((0, 1), (2, 1)) for given in orders[Member(at, 0)].gives]
    assert sorted(gives) == [(0, 0), (1, 0), (2, 0)]


def test_a_switch_needs_everybody_at_one_step() -> None:
    found = move()
    found.begin(1, [Member(worker, 0) for worker in found.cells], now=0.0)
    reports = {Member(worker, 0): HeldState(9, is_fresh=False) for worker in found.cells}
    assert found.obstacle(reports) == "not all layers have arrived"
    assert [found.arrive(Member((p, 0), 0), 10, 3.0) for p in range(3)] == [False, False, True]
    assert found.received == 30
    assert found.obstacle(reports) == "layers of 0:0 are not up to date"
    for p in range(3):
        reports[Member((p, 0), 0)] = HeldState(9, is_fresh=False, layers_applied=9)
    assert found.obstacle(reports) is None
    newcomer = Member((1, 1), 0)
    assert found.obstacle({**reports, newcomer: HeldState(0, is_fresh=True)}) is None
    ahead = {**reports, Member((0, 1), 0): HeldState(10, is_fresh=False)}
    assert found.obstacle(ahead) == "the workers stand at different steps"
    del reports[Member((2, 1), 0)]
    assert found.obstacle(reports) == "2:1 is gone"


def test_a_move_that_takes_too_long() -> None:
    found = move()
    found.begin(1, [Member(worker, 0) for worker in found.cells], now=0.0)
    assert not found.is_late(59.0) and found.is_late(61.0)
    found.missing.clear()
    assert not found.is_late(1000.0)


def test_a_bundle_without_other_cuts_is_a_family_of_one() -> None:
    bundle: Bundle = fake_bundle(2, 2, [[]])
    assert PlanBook(bundle).family[0].is_own
    assert len(PlanBook(bundle).family) == 1
