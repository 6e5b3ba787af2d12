"""Folders of checkpoints and saves that never became complete do not stay behind."""

from pathlib import Path

from recycle_runtime.checkpoint.manifest import FILE, Shape
from recycle_runtime.checkpoint.shelf import Beginning
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles, open_checkpoints
from recycle_runtime.coordinator.events import BeginSave
from recycle_runtime.coordinator.journal import Journal, Remembered, read
from recycle_runtime.coordinator.save_files import SaveFiles
from tests.runtime.coordinator.fake_job import heavy_bundle


def folders(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def complete(path: Path) -> None:
    (path / FILE).touch()


def test_checkpoints_that_were_begun(tmp_path: Path) -> None:
    files = CheckpointFiles(str(tmp_path))
    for name in ("step-00000100", "step-00000200", "step-00000300"):
        assert files.begin(name) == []
    complete(tmp_path / "step-00000200")
    (tmp_path / "step-00000300" / "layer-0-part-0").mkdir()
    (tmp_path / "mine").mkdir()
    files.sweep()
    assert folders(tmp_path) == ["mine", "step-00000200"]


def test_saves_that_were_begun_by_any_coordinator_of_the_job(tmp_path: Path) -> None:
    first, second = (
        SaveFiles(tmp_path / "own", Shape(2, 2, 2, 1), Beginning()) for _ in range(2)
    )  # fmt: skip
    paths = [
        files.begin(BeginSave(0, 4, str(tmp_path / "kept"))).path for files in (first, second, second)
    ]  # fmt: skip
    complete(Path(paths[1]))
    (tmp_path / "kept" / "step-00000009").mkdir()
    second.remember(paths[:1])
    second.sweep()
    assert folders(tmp_path / "kept") == ["step-00000004.1", "step-00000009"]


def test_the_journal_knows_what_was_begun(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(saving="/kept/step-00000004")
    journal.write(generation=1, step=0, places=[(0, 0)])
    journal.close()
    found = read(tmp_path / "journal")
    assert found is not None and found.saving == ("/kept/step-00000004",)


def test_a_new_run_begins_without_those_of_the_last(tmp_path: Path) -> None:
    (tmp_path / "step-00000100").mkdir()
    journal = Journal(tmp_path / "journal")
    remembered = Remembered(1, 0, (), 0, ())
    open_checkpoints(str(tmp_path), heavy_bundle(), 10, 5, remembered, journal, resume=False)
    assert folders(tmp_path) == ["journal", "step-00000100"], "workers may be writing to it"
    open_checkpoints(str(tmp_path), heavy_bundle(), 10, 5, None, journal, resume=False)
    journal.close()
    assert folders(tmp_path) == ["journal"]
