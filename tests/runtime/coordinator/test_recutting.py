"""When another cut is looked for, what is weighed, and how long one that came to nothing has to wait."""

from typing import Any

import pytest

from recycle_runtime.coordinator.events import RecutWanted
from recycle_runtime.coordinator.recutting import Recutting
from recycle_runtime.plan.moves import CostOfMoves
from recycle_runtime.protocol.messages import JobEvent
from tests.runtime.coordinator.test_state_machine import CUTS
from tests.runtime.recovery.model import World


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
    return list(recutting.turn(world.coordinator, rows, 1.0, CostOfMoves(), 10_000.0))


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


@pytest.mark.parametrize("when", ["off", "auto"])
def test_it_is_not_considered(when: str) -> None:
    """Switched off; or the program gives whole stages, as far as its workers have said."""
    world = settled_world()
    slower(world)
    recutting = Recutting(world.book, when, Notes())
    if when == "off":
        recutting.began(0, [8, 8, 8, 8])
    else:
        recutting.began(0, [])
    assert not recutting.is_considered
    assert turn(recutting, world) == []


def test_a_job_that_ends_soon_is_left_alone() -> None:
    world = settled_world()
    slower(world)
    (told,) = known(world)[0].turn(world.coordinator, 5, 1e-6, CostOfMoves(), 1e-3)
    assert isinstance(told, JobEvent) and told.text.endswith(": not re-cut")
    always = known(world, "always")[0].turn(world.coordinator, 5, 1e-6, CostOfMoves(), 1e-3)
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
