"""Whatever order things happen in: no deadlock, no step missing or counted twice, generations only grow."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recycle_runtime.coordinator.events import Said
from recycle_runtime.coordinator.state_machine import Phase
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.messages.generations import GroupBroken
from recycle_runtime.protocol.store_table import REGROUPING
from tests.runtime.recovery.model import World
from tests.runtime.recovery.plans_for_tests import bundle_with_cuts

STEPS = 12


def can_fail(world: World, place: Worker) -> bool:
    """Another worker of its stage holds the parameters, under the cut there is and the one that may come."""
    coordinator = world.coordinator
    move = coordinator.participants.layer_moves.move
    others = {
        other
        for other, process in world.processes.items()
        if other != place and process.applied is not None and not process.is_fresh
    }
    stages = {other: coordinator.cells.stage(other) for other in world.processes}
    if stages[place] not in {stages[other] for other in others}:
        return False
    if move is None or place not in move.cells:
        return True
    return move.cells[place][1] in {move.cells[other][1] for other in others if other in move.cells}


def disturb(world: World, events: int, faults: tuple[str, ...]) -> None:
    """Some progress, then something bad, and so on."""
    for _ in range(events):
        for _ in range(world.chance.randrange(60)):
            world.chance.choice(world.moves())()
        if world.is_over:
            return
        FAULTS[world.chance.choice(faults)](world)


def kill(world: World) -> None:
    if doomed := [place for place in world.processes if can_fail(world, place)]:
        world.kill(world.chance.choice(doomed))


def start(world: World) -> None:
    taken = {*world.processes, *world.failures}
    if free := [place for place in world.book.grid if place not in taken]:
        world.start(world.chance.choice(free))


def break_connection(world: World) -> None:
    connected = [process for process in world.processes.values() if process.is_connected]
    if begun := [process for process in connected if process.generation > 0]:
        world.chance.choice(begun).break_connection()


FAULTS = {"kill": kill, "start": start, "break": break_connection, "restart": World.restart}


def check(world: World) -> None:
    assert world.is_over
    assert world.error is None, world.error
    assert [row.step for row in world.rows] == list(range(STEPS))
    assert world.generations == sorted(set(world.generations))
    for place in world.written[world.generations[-1]]:
        process = world.processes.get(place)
        assert process is None or process.applied == STEPS


def check_losses(world: World) -> None:
    """Every worker of the last stage adds one."""
    for row in world.rows:
        assert row.loss is not None
        assert 1.0 <= row.loss <= world.book.pipelines


STAY = ("kill", "kill", "start")
"""Connections stay, and the coordinator."""
KINDS = st.sampled_from([STAY, ("kill", "start", "break"), ("kill", "start", "break", "restart")])


@settings(max_examples=450)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(2, 3), st.integers(0, 12), KINDS)
# Whoever should make a step again fails, and it counts as it was made before.
@example(300, 1, 3, 2, STAY)
# A joiner that the coordinator before had asked in, and that has caught up or not.
@example(190616114, 1, 3, 10, tuple(FAULTS))
@example(2576358404, 1, 3, 10, tuple(FAULTS))
# Processes that have heard of later generations than the coordinator that is there now.
@example(142532987, 3, 3, 10, tuple(FAULTS))
@example(341520726, 2, 3, 10, tuple(FAULTS))
@example(3907793547, 2, 3, 10, tuple(FAULTS))
@example(4197518511, 3, 3, 10, tuple(FAULTS))
def test_whatever_happens(
    seed: int, stages: int, pipelines: int, events: int, faults: tuple[str, ...]
) -> None:
    world = World(seed, stages, pipelines, STEPS)
    disturb(world, events, faults)
    world.run_to_the_end()
    check(world)
    if faults == STAY:
        check_losses(world)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(0, 12), KINDS)
def test_the_cut_changes(seed: int, pipelines: int, events: int, faults: tuple[str, ...]) -> None:
    world = World(seed, 2, pipelines, STEPS, bundle_with_cuts(pipelines))
    disturb(world, events, faults)
    world.run_to_the_end()
    check(world)


def test_the_model_changes_its_cut() -> None:
    """And gives some of these changes up; else the tests above would say nothing."""
    worlds = [World(seed, 2, 3, STEPS, bundle_with_cuts(3)) for seed in range(16)]
    for world in worlds:
        disturb(world, 6, ("kill", "start"))
        world.run_to_the_end()
    assert sum(world.recuts for world in worlds) > 10
    assert sum(world.given_up for world in worlds) > 1


@pytest.mark.parametrize(("why", "is_over"), [(REGROUPING, False), ("connection reset", True)])
def test_a_refusal_of_the_coordinator_before_does_not_count_as_a_failed_meeting(
    why: str, is_over: bool
) -> None:
    """That one was about to regroup. This one knows of the generation alone, and regroups as often as it
    must."""
    world = World(7, 2, 2, STEPS)
    for _ in range(10):
        while not (world.is_over or world.coordinator.phase is Phase.RUNNING):
            world.chance.choice(world.moves())()
        member = next(iter(world.processes.values())).member
        if not world.is_over:
            world.happen(Said(member, GroupBroken(world.coordinator.number, why)))
    assert world.is_over == is_over
    if is_over:
        assert world.error is not None and "could not talk to each other" in world.error
    else:
        world.run_to_the_end()
        check(world)
