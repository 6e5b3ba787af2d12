"""Folders of checkpoints and saves that never became complete do not stay behind."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recycle_runtime.checkpoint.checkpoint_folder import Beginning
from recycle_runtime.checkpoint.manifest import FILE, CheckpointShape
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles, begin_run
from recycle_runtime.coordinator.events import BeginSave
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.last_generation import Remembered
from recycle_runtime.coordinator.outlives import read_journal
from recycle_runtime.coordinator.save_files import SaveFiles
from recycle_runtime.files import lock_checkpoints
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
        SaveFiles(tmp_path / "own", CheckpointShape(2, 2, 2, 1), Beginning()) for _ in range(2)
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
    assert read_journal(tmp_path / "journal").values("saving") == ["/kept/step-00000004"]


def test_a_new_run_begins_without_those_of_the_last(tmp_path: Path) -> None:
    (tmp_path / "step-00000100").mkdir()
    journal = Journal(tmp_path / "journal")
    remembered = Remembered(1, 0, ())
    begin_run(str(tmp_path), heavy_bundle(), 10, remembered, None, journal, resume=False)
    assert folders(tmp_path) == ["journal", "step-00000100"], "workers may be writing to it"
    begin_run(str(tmp_path), heavy_bundle(), 10, None, None, journal, resume=False)
    journal.close()
    assert folders(tmp_path) == ["journal"]


def test_a_folder_that_was_removed_is_locked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "kept"
    lock_checkpoints(folder)
    files = CheckpointFiles(str(folder))
    assert files.begin("step-00000001") == [] and not caplog.records
    shutil.rmtree(folder)
    assert files.begin("step-00000002") == []
    assert "somebody has removed this folder" in caplog.text
    with pytest.raises(subprocess.CalledProcessError) as refused:
        taken_by_another(folder)
    assert b"is in use by another job" in refused.value.stderr
    shutil.rmtree(folder)
    with taken_by_another(folder) as other:
        (not_begun,) = files.begin("step-00000003")
        assert "is in use by another job" in not_begun.why
        other.communicate(b"end")


def taken_by_another(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that has the folder until it is told to end."""
    source = "import sys; from pathlib import Path; from recycle_runtime.files import lock_checkpoints; "
    source += "lock_checkpoints(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", source, str(folder)]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    if not process.stdout.readline():
        _, said = process.communicate()
        raise subprocess.CalledProcessError(process.returncode, command, stderr=said)
    return process
