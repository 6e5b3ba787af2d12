"""Saves of scripts: who writes one, when it is complete, and what becomes of attempts that fail."""

from pathlib import Path

from recycle_runtime.checkpoint.checkpoint_folder import Beginning, CheckpointFolder
from recycle_runtime.checkpoint.manifest import CheckpointShape
from recycle_runtime.coordinator.cells import Cells
from recycle_runtime.coordinator.events import (
    BeginSave,
    CompleteSave,
    DropSave,
    Note,
    SaveBegun,
    Send,
    Tell,
)
from recycle_runtime.coordinator.journal import JournalLine, Lines
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.coordinator.participant import NewGeneration, View
from recycle_runtime.coordinator.save_files import SaveFiles
from recycle_runtime.coordinator.saves import Saves
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.scripts import Saved, SaveOrder, SaveRequest, SaveShare
from tests.runtime.recovery.plans_for_tests import fake_bundle

A, B, C, D = (Member((pipeline, stage), 0) for pipeline in range(2) for stage in range(2))
ALL = [A, B, C, D]
STAGES = {member.worker: member.worker[1] for member in ALL}
ASKED = SaveRequest(4, 0, "/kept")


def share(path: str, stage: int, error: str | None = None) -> SaveShare:
    return SaveShare(path, {f"layer-{stage}-part-0": stage}, 7, error)


def generation(number: int, members: list[Member]) -> NewGeneration:
    return NewGeneration(number, 0, members, frozenset(), STAGES)


def begun(path: str) -> Saves:
    """The first holders of both stages have been told to write."""
    saves = Saves()
    saves.job = View(
        Roster(1), Cells(PlanBook(fake_bundle(2, 2, [[]]))), lambda member, generation: True, lambda: 0.0
    )
    assert saves.generation(generation(1, ALL)) == []
    assert saves.wants(C, ASKED) == [BeginSave(0, 4, "/kept")]
    assert saves.wants(A, ASKED) == []
    order = SaveOrder(1, 4, 0, path)
    assert saves.begun(0, path, None) == [Note({"saving": path}), Send(A, order), Send(B, order)]
    return saves


def test_it_is_complete_when_every_stage_is_on_disk() -> None:
    saves = begun("/kept/a")
    assert saves.hear(A, share("/kept/a", 0)) == []
    assert saves.hear(A, share("/kept/a", 0)) == [] == saves.hear(C, share("/kept/a", 0))
    # Said again by one whose order may have been lost, and by one that has done its part.
    assert saves.wants(B, ASKED) == [Send(B, SaveOrder(1, 4, 0, "/kept/a"))]
    assert saves.wants(A, ASKED) == []
    shards = {"layer-0-part-0": 0, "layer-1-part-0": 1}
    assert saves.hear(B, share("/kept/a", 1)) == [CompleteSave(0, 4, "/kept/a", shards, 7)]
    result = Saved(4, 0, "/kept/a", None)
    # A change of the group does not matter any more.
    assert saves.generation(generation(2, [C, D])) == []
    told = Tell("saved after 4 steps: /kept/a")
    assert saves.closed(0, None) == [Note({"saved": result}), told]
    assert saves.wants(D, ASKED) == [Send(D, result)]
    restarted = Saves()
    restarted.recall(Lines("journal", (JournalLine(1, {"saved": result}),)))
    assert restarted.wants(D, ASKED) == [Send(D, result)]


def test_the_next_generation_writes_what_a_failed_worker_has_not() -> None:
    saves = begun("/kept/a")
    saves.hear(B, share("/kept/a", 1))
    assert saves.generation(generation(2, [B, C, D])) == [DropSave("/kept/a"), BeginSave(1, 4, "/kept")]
    assert saves.hear(B, share("/kept/a", 1)) == [], "of the attempt before"
    order = SaveOrder(2, 4, 0, "/kept/b")
    assert saves.begun(1, "/kept/b", None) == [Note({"saving": "/kept/b"}), Send(B, order), Send(C, order)]
    # A folder that was made for an attempt which nobody wants any more.
    assert saves.begun(0, "/kept/late", None) == [DropSave("/kept/late")]


def test_an_error_is_the_answer_to_all() -> None:
    saves = begun("/kept/a")
    result = Saved(4, 0, "/kept/a", "no space left on device")
    told = saves.hear(A, share("/kept/a", 0, "no space left on device"))
    words = Tell("not saved after 4 steps: no space left on device")
    assert told == [DropSave("/kept/a"), Note({"saved": result}), words]
    assert saves.wants(D, ASKED) == [Send(D, result)]
    assert saves.wants(D, SaveRequest(4, 1, "/kept")) == [BeginSave(1, 4, "/kept")]
    assert saves.begun(1, "/kept", "permission denied") == [
        Note({"saved": Saved(4, 1, "/kept", "permission denied")}),
        Tell("not saved after 4 steps: permission denied"),
    ]


def test_what_is_read_and_deleted_is_not_said_to_be_saved() -> None:
    saves = begun("/kept/a")
    shares = [share("/made/b", stage) for stage in range(2)]
    assert saves.wants(D, SaveRequest(4, 1, "", stays=False)) == [BeginSave(1, 4, "")]
    saves.begun(1, "/made/b", None)
    assert [saves.hear(A, shares[0]), *saves.hear(B, shares[1])][1:]
    assert saves.closed(1, None) == [Note({"saved": Saved(4, 1, "/made/b", None)})]


def test_scripts_that_save_to_different_folders() -> None:
    why = begun("/kept/a").wants(D, SaveRequest(4, 0, "/other"))
    assert isinstance(why, str) and why.startswith("the script of worker 1:1 saves to /other, and that of")


def test_folders_are_new_and_errors_sentences(tmp_path: Path) -> None:
    files = SaveFiles(tmp_path / "own", CheckpointShape(2, 2, 1, 2, 2), Beginning())
    kept = str(tmp_path / "kept")
    assert files.begin(BeginSave(0, 4, kept)) == SaveBegun(0, f"{kept}/step-00000004", None)
    # Also when the first is gone: its writers may not know that yet.
    files.drop(f"{kept}/step-00000004")
    while Path(kept, "step-00000004").exists():
        pass
    assert files.begin(BeginSave(1, 4, kept)) == SaveBegun(1, f"{kept}/step-00000004.1", None)
    assert files.begin(BeginSave(2, 4, "")).path == str(tmp_path / "own" / "step-00000004")
    beside = SaveFiles(tmp_path / "own", CheckpointShape(2, 2, 1, 2, 2), Beginning(), kept)
    assert beside.begin(BeginSave(0, 4, kept)).path == f"{kept}/step-00000004.1000"
    (tmp_path / "file").touch()
    refused = files.begin(BeginSave(3, 4, f"{tmp_path}/file/kept"))
    assert refused.why == f"{tmp_path}/file/kept: not a directory"
    # Shards of a whole model or none: without a manifest it is no checkpoint.
    files.complete(CompleteSave(1, 4, f"{kept}/step-00000004.1", {"layer-1-part-0": 1}, 7))
    while not (closed := files.take()):
        pass
    assert closed[0].why == "the workers' shards are not those of a whole model"
    assert CheckpointFolder(kept).look() == ([], [])
    files.close()
    beside.close()
