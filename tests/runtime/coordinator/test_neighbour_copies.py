"""Copies in memory: when they are made, who holds them, and which one counts."""

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, is_copy
from recycle_runtime.checkpoint.manifest import CheckpointShape
from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.coordinator.events import Note, Send, Tell
from recycle_runtime.coordinator.journal import JournalLine, Lines
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy, CopyGroup, NeighbourCopies
from recycle_runtime.coordinator.scripts import Scripts
from recycle_runtime.protocol.codec import decode, encode
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.neighbour_copies import (
    CopyFailed,
    CopyHeld,
    CopyKept,
    CopyMissed,
    GiveCopy,
    HoldCopy,
    KeepCopy,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

SHAPE = CheckpointShape(stages=2, pipelines=2, tensor=1, microbatches=3)
WORKERS = [(pipeline, stage) for pipeline in (0, 1) for stage in (0, 1)]
FIRST, SECOND = Member((0, 0), 0), Member((0, 1), 0)
THIRD = Member((1, 1), 0)
ONE_NODE = {worker: "a" for worker in WORKERS}
TWO_NODES = {(0, 0): "a", (0, 1): "a", (1, 0): "b", (1, 1): "b"}


def group(nodes: dict[tuple[int, int], str] = ONE_NODE) -> CopyGroup:
    members = [Member(worker, 0) for worker in WORKERS]
    return CopyGroup(1, members, {worker: worker[1] for worker in WORKERS}, nodes)


def copies(steps: int = 100, scripts: Scripts | None = None) -> NeighbourCopies:
    return NeighbourCopies(4, SHAPE, steps, Beginning(), 3, scripts)


def kept(name: str, stage: int, memory: str = "a") -> CopyKept:
    return CopyKept(name, memory, (f"stage-{stage}-part-0",), 1000, 0.01, 0.02)


def begun(found: NeighbourCopies, step: int, nodes: dict[tuple[int, int], str] = ONE_NODE) -> str:
    orders = found.begin(step, group(nodes))
    (name,) = {order.message.name for order in orders if isinstance(order.message, KeepCopy)}
    return name


def test_the_first_peer_of_each_stage_copies_in_time() -> None:
    found = copies()
    assert found.due(1) == 4
    orders = found.begin(4, group())
    name = "copy-00000004.3.0"
    assert orders == [Send(FIRST, KeepCopy(4, name, 0, ())), Send(SECOND, KeepCopy(4, name, 0, ()))]
    assert is_copy(name) and found.due(3) is None


def test_where_groups_have_all_layers_one_of_them_copies() -> None:
    """And any worker of another stage may hold it."""
    alone = (0, 2)
    nodes, stages = {**ONE_NODE, alone: "b"}, {worker: worker[1] for worker in [*WORKERS, alone]}
    members = [Member(worker, 0) for worker in [*WORKERS, alone]]
    grouped = CopyGroup(1, members, stages, nodes, once=(0, 1))
    assert grouped.writers() == {FIRST: 0, SECOND: 1}
    assert grouped.holders([FIRST]) == {FIRST: Member(alone, 0)}


def test_no_worker_may_have_passed_the_step() -> None:
    found = copies()
    assert found.due(3) == 5
    assert copies(5).due(3) is None
    # Before all have begun with a generation, nobody has made its first step.
    assert found.due(3, has_begun=False) == 4 and found.due(4, has_begun=False) == 5


def test_on_one_node_it_counts_when_every_stage_is_copied() -> None:
    found = copies()
    name = begun(found, 4)
    assert found.hear(FIRST, kept(name, 0), group()) == []
    assert found.newest is None
    told, noted = found.hear(SECOND, kept(name, 1), group())
    assert noted == Note({"copied": found.newest})
    assert isinstance(told, Tell) and "training paused for 0.010 s" in told.text
    newest = CompleteCopy(name, 4, 24, 0, {"stage-0-part-0": ("a",), "stage-1-part-0": ("a",)})
    assert found.newest == newest
    assert newest.missing({"a"}) == []
    assert newest.missing({"b"}) == ["stage-0-part-0", "stage-1-part-0"]


def test_the_next_one_leaves_the_newest_alone() -> None:
    found = copies()
    name = begun(found, 4)
    for stage, member in enumerate((FIRST, SECOND)):
        found.hear(member, kept(name, stage), group())
    assert found.due(5) == 8
    second, *_ = found.begin(8, group())
    assert second.message == KeepCopy(8, "copy-00000008.3.1", 1, (name,))
    found.leave()
    assert found.newest is not None and found.newest.name == name
    third, *_ = found.begin(12, group())
    assert third.message == KeepCopy(12, "copy-00000012.3.2", 1, (name,))


def test_with_several_nodes_another_stage_on_another_node_holds_it() -> None:
    found, both = copies(), group(TWO_NODES)
    name = begun(found, 4, TWO_NODES)
    found.hear(FIRST, kept(name, 0), both)
    orders = found.hear(SECOND, kept(name, 1), both)
    holder = Member((1, 0), 0)
    assert orders == [
        Send(FIRST, GiveCopy(1, name, 0, (1, 1))),
        Send(THIRD, HoldCopy(1, name, 0, (0, 0), 1000)),
        Send(SECOND, GiveCopy(1, name, 0, (1, 0))),
        Send(holder, HoldCopy(1, name, 0, (0, 1), 1000)),
    ]
    assert found.hear(THIRD, CopyHeld(name, "b", 1000, 0.1), both) == [] and found.newest is None
    told, _ = found.hear(holder, CopyHeld(name, "b", 1000, 0.1), both)
    assert isinstance(told, Tell) and "that of 0:0 on 1:1's, 0:1 on 1:0's" in told.text
    assert found.newest is not None
    # Either node may be lost.
    assert found.newest.missing({"a"}) == found.newest.missing({"b"}) == []


def test_what_cannot_be_complete_is_given_up() -> None:
    found = copies()
    name = begun(found, 4)
    assert found.hear(FIRST, CopyMissed(name), group()) == []
    # It was told too late, so the next time earlier.
    assert found.due(5) == 9
    name = begun(found, 9)
    failed = CopyFailed(name, "no memory")
    assert found.hear(FIRST, failed, group()) == [Tell("no copy of step 9 in memory: no memory")]
    name = begun(found, 16)
    assert found.hear(FIRST, CopyFailed(name, "no memory"), group()) == []
    name = begun(found, 20)
    found.hear(FIRST, kept(name, 0), group())
    (told,) = found.hear(SECOND, kept(name, 0), group())
    assert isinstance(told, Tell) and "not those of a whole model" in told.text
    assert found.newest is None


def test_who_was_told_too_late_once_is_not_told_ever_earlier() -> None:
    """Found once: copies were named up to 64 steps ahead for the rest of the job, and most given up because
    the group changed meanwhile: a job went back 40 steps with a copy every 4."""
    found = copies()
    for step, due in ((3, 5), (5, 9), (9, 17)):
        assert found.due(step) == due
        found.hear(FIRST, CopyMissed(begun(found, due)), group())
    name = begun(found, 30)
    for stage, member in enumerate((FIRST, SECOND)):
        found.hear(member, kept(name, stage), group())
    assert found.due(31) == 39
    begun(found, 39)
    found.leave()
    assert found.due(35) == 37


def test_it_is_told_once_that_none_could_be_completed_for_long() -> None:
    found = copies()
    begun(found, 4)
    found.leave()
    assert list(found.late(32)) == []
    (told,) = found.late(33)
    assert told.text.startswith(
        "no copy in memory since step 0, 33 steps ago: the group changed before one was complete; if all"
    )
    assert list(found.late(50)) == []
    name = begun(found, 52)
    for stage, member in enumerate((FIRST, SECOND)):
        found.hear(member, kept(name, stage), group())
    assert list(found.late(80)) == []
    (told,) = found.late(90)
    assert told.text.startswith("no copy in memory since step 52, 38 steps ago: it takes long; if all")


def test_words_of_an_old_copy_are_left_alone() -> None:
    found = copies()
    old = begun(found, 4)
    found.leave()
    begun(found, 8)
    assert found.hear(FIRST, kept(old, 0), group()) == []


def test_with_scripts_it_counts_when_they_have_said_what_they_keep() -> None:
    found = copies(scripts=Scripts())
    name = begun(found, 4)
    assert found.waits_for_scripts == 4
    for stage, member in enumerate((FIRST, SECOND)):
        found.hear(member, kept(name, stage), group())
    assert found.newest is None
    state = ScriptState(
        b"kept", StepRow(3, 0.5, 0.1, 4, "0 0"), StepSettled(3, 1.0, is_skipped=False), ((0, 0),)
    )
    found.hear_scripts(state)
    assert found.newest is not None and found.newest.script == state
    # A coordinator that is started again reads it from its journal.
    assert decode(CompleteCopy, encode(found.newest)) == found.newest
    again = copies(scripts=Scripts())
    again.recall(Lines("journal", (JournalLine(1, {"copied": found.newest}),)))
    assert again.newest == found.newest
