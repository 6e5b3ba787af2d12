"""When another cut is looked for, what is weighed, and how long one that came to nothing has to wait."""

from typing import Any

from recycle_runtime.coordinator.events import RecutWanted
from recycle_runtime.coordinator.recutting import Recutting
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


def turn(recutting: Recutting, world: World, rows: int = 5) -> list[Any]:
    left = world.coordinator.steps - world.coordinator.rows.next
    return list(recutting.turn(world.coordinator, rows, CostOfMoves(), Outlook(1.0, 10_000.0, left)))


def known(world: World, when: str = "auto") -> tuple[Recutting, Notes]:
    notes = Notes()
    recutting = Recutting(world.book, when, notes)
    recutting.began(0, [8, 8])
    recutting.began(2, [8, 8])
    return recutting, notes


def test_nothing_is_said_as_long_as_nothing_is_faster() -> None:
    world = settled_world()
    assert turn(known(world)[0], world) == []


def test_a_faster_cut_is_wanted_once() -> None:
    world = settled_world()
    slower(world)
    recutting, notes = known(world)
    assert notes.written == [{"layer_bytes": [8, 8, 8, 8]}]
    told, wanted = turn(recutting, world)
    assert isinstance(told, JobEvent) and told.text.endswith(": re-cut")
    assert isinstance(wanted, RecutWanted)
    assert turn(recutting, world) == []


def test_it_is_not_considered() -> None:
    """Switched off."""
    world = settled_world()
    slower(world)
    recutting = Recutting(world.book, "off", Notes())
    recutting.began(0, [8, 8, 8, 8])
    assert not recutting.is_considered
    assert turn(recutting, world) == []


def test_a_job_that_ends_soon_is_left_alone() -> None:
    world = settled_world()
    slower(world)
    outlook = Outlook(1e-6, 1e-3, 10)
    (told,) = known(world)[0].turn(world.coordinator, 5, CostOfMoves(), outlook)
    assert isinstance(told, JobEvent) and told.text.endswith(": not re-cut")
    always = known(world, "always")[0].turn(world.coordinator, 5, CostOfMoves(), outlook)
    assert isinstance(always[-1], RecutWanted)


def test_what_came_to_nothing_waits() -> None:
    world = settled_world()
    slower(world)
    recutting, _ = known(world)
    assert len(turn(recutting, world)) == 2
    recutting.ended("its donor is gone", rows=5)
    assert turn(recutting, world, rows=20) == []
    assert len(turn(recutting, world, rows=21)) == 2
    recutting.ended("its donor is gone", rows=21)
    recutting.generation()
    assert turn(recutting, world, rows=31) == []
    assert len(turn(recutting, world, rows=32)) == 2
    recutting.ended(None, rows=32)
    recutting.generation()
    assert len(turn(recutting, world, rows=1)) == 2


def test_another_coordinator_knows_what_layers_take() -> None:
    world = settled_world()
    slower(world)
    recutting = Recutting(world.book, "auto", Notes())
    recutting.recall([8, 8, 8, 8])
    assert len(turn(recutting, world)) == 2


def test_a_program_in_whole_stages_keeps_its_cut_and_says_so_once() -> None:
    world = settled_world()
    slower(world)
    recutting = Recutting(world.book, "always", Notes())
    for _ in range(2):
        recutting.began(0, [])
    assert turn(recutting, world) == [JobEvent("the job keeps its cut: the program gives whole stages")]
    assert not recutting.is_considered and turn(recutting, world) == []


def test_halves_count_only_if_nobody_has_seen_a_micro_batch_that_cannot_be_split() -> None:
    world = settled_world()
    split = fake_bundle(2, 3, [[]], (2, 2))
    split.__dict__["microbatches"] *= 2
    book = world.book.with_bundle(world.book.add(split))
    split.__dict__["plans"] = [split.plans[0]._replace(period=50)]

    def layouts(*said: bool | None) -> list[str]:
        recutting, _ = known(world)
        recutting.generation()
        for can_halve in said:
            recutting.began(0, [8, 8], can_halve=can_halve)
        slower(world)
        return [wish.move.layout for wish in turn(recutting, world) if isinstance(wish, RecutWanted)]

    assert book.split == 2
    assert layouts(True, None) == ["2x3,2x3 in halves"]
    assert layouts(True, False) == layouts(False, True) == layouts(None) == layouts() != ["2x3,2x3 in halves"]
