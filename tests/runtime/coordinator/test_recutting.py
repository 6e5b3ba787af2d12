"""When another cut is a candidate, and how long one that came to nothing has to wait."""

from typing import Any

from recycle_runtime.coordinator.candidates import Candidate, Recuts, Situation
from recycle_runtime.coordinator.events import RecutWanted
from recycle_runtime.plan.change import Outlook
from recycle_runtime.plan.moves import CostOfMoves
from recycle_runtime.protocol.messages.observers import JobEvent
from tests.runtime.coordinator.test_state_machine import CUTS
from tests.runtime.recovery.model import World
from tests.runtime.recovery.plans_for_tests import fake_bundle


class Notes:
    """In place of a journal."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, **fields: Any) -> None:
        self.written.append(fields)


def settled_world() -> World:
    """Its own plans take 100 and 104 ticks; one of another cut takes 100 with all workers."""
    world = World(1, 2, 3, 500, CUTS)
    while not (world.coordinator.is_settled and len(world.rows) > 2):
        # Nothing but steps: no re-cut of the model's own accord.
        moves = [move for move in world.moves() if move != world.want_recut]
        world.chance.choice(moves)()
    return world


def slower(world: World) -> None:
    """The plan in use has become a slow one."""
    coordinator = world.coordinator
    assert coordinator.assignment is not None
    coordinator.assignment = coordinator.assignment._replace(period=200)


def candidates(
    recuts: Recuts, world: World, rows: int = 5, until_change: float = 10_000.0
) -> list[Candidate]:
    left = world.coordinator.steps - world.coordinator.participants.rows.next
    now = Situation(world.coordinator, rows, Outlook(1.0, until_change, left), CostOfMoves())
    return recuts.candidates(now)


def known(world: World, when: str = "auto") -> tuple[Recuts, Notes]:
    notes = Notes()
    recuts = Recuts(world.book, when, notes)
    recuts.began(0, [8, 8])
    recuts.began(2, [8, 8])
    return recuts, notes


def test_there_is_none_as_long_as_nothing_is_faster() -> None:
    world = settled_world()
    assert candidates(known(world)[0], world) == []


def test_a_faster_cut() -> None:
    world = settled_world()
    slower(world)
    recuts, notes = known(world)
    assert notes.written == [{"layer_bytes": [8, 8, 8, 8]}]
    (found,) = candidates(recuts, world)
    assert found.change.pays and str(found.change).endswith(": re-cut")
    assert isinstance(found.take(), RecutWanted)


def test_it_is_not_considered() -> None:
    """Switched off."""
    world = settled_world()
    slower(world)
    recuts = Recuts(world.book, "off", Notes())
    recuts.began(0, [8, 8, 8, 8])
    assert not recuts.is_considered
    assert candidates(recuts, world) == []


def test_a_job_that_ends_soon_is_left_alone() -> None:
    world = settled_world()
    slower(world)
    (found,) = candidates(known(world)[0], world, until_change=1e-3)
    assert not found.change.pays and str(found.change).endswith(": not re-cut")
    (asked_for,) = candidates(known(world, "always")[0], world, until_change=1e-3)
    assert asked_for.change.pays and str(asked_for.change).endswith(": re-cut, as asked for")


def test_what_came_to_nothing_waits() -> None:
    world = settled_world()
    slower(world)
    recuts, _ = known(world)
    assert candidates(recuts, world)
    recuts.ended("its donor is gone", rows=5)
    assert candidates(recuts, world, rows=20) == []
    assert candidates(recuts, world, rows=21)
    recuts.ended("its donor is gone", rows=21)
    recuts.generation()
    assert candidates(recuts, world, rows=31) == []
    assert candidates(recuts, world, rows=32)
    recuts.ended(None, rows=32)
    recuts.generation()
    assert candidates(recuts, world, rows=1)


def test_another_coordinator_knows_what_layers_take() -> None:
    world = settled_world()
    slower(world)
    recuts = Recuts(world.book, "auto", Notes())
    recuts.recall([8, 8, 8, 8])
    assert candidates(recuts, world)


def test_a_program_in_whole_stages_keeps_its_cut_and_says_so_once() -> None:
    world = settled_world()
    slower(world)
    recuts = Recuts(world.book, "always", Notes())
    for _ in range(2):
        recuts.began(0, [])
    assert recuts.news() == [JobEvent("the job keeps its cut: the program gives whole stages")]
    assert recuts.news() == [] and not recuts.is_considered and candidates(recuts, world) == []


def test_halves_count_only_if_nobody_has_seen_a_micro_batch_that_cannot_be_split() -> None:
    world = settled_world()
    split = fake_bundle(2, 3, [[]], (2, 2))
    split.__dict__["microbatches"] *= 2
    split.__dict__["plans"] = [split.plans[0]._replace(period=50)]
    book = world.book.with_bundle(world.book.add(split))

    def layouts(*said: bool | None) -> list[str]:
        recuts, _ = known(world)
        recuts.generation()
        for can_halve in said:
            recuts.began(0, [8, 8], can_halve=can_halve)
        slower(world)
        return [found.change.what.removeprefix("layout ") for found in candidates(recuts, world)]

    assert book.split == 2
    assert layouts(True, None) == ["2x3,2x3 in halves"]
    assert layouts(True, False) == layouts(False, True) == layouts(None) == layouts() != ["2x3,2x3 in halves"]
