"""The folder of checkpoints: which of them are complete, where a run begins, what is deleted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_runtime.checkpoint.checkpoint_folder import (
    Beginning,
    CheckpointFolder,
    beginning,
    checkpoint_name,
    is_name,
)
from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest, Origin
from recycle_runtime.state.names import CheckpointError, shard_name

SHAPE = CheckpointShape(stages=2, pipelines=3, tensor=1, microbatches=4)


def manifest(step: int, shape: CheckpointShape = SHAPE) -> Manifest:
    return Manifest(step, step * shape.per_step, 0, shape, dict.fromkeys(shape.shards, 1))


def shards(folder: Path, shape: CheckpointShape = SHAPE) -> None:
    for name in shape.shards:
        (folder / name).mkdir()
        (folder / name / "part.json").touch()


def complete(kept_folder: CheckpointFolder, step: int, shape: CheckpointShape = SHAPE) -> str:
    name = checkpoint_name(step)
    kept_folder.make(name)
    shards(kept_folder.folder / name, shape)
    kept_folder.complete(name, manifest(step, shape))
    return name


def test_the_newest_comes_first_and_older_ones_go(tmp_path: Path) -> None:
    kept_folder = CheckpointFolder(tmp_path / "kept")
    assert kept_folder.look() == ([], [])
    for step in (10, 20, 30):
        complete(kept_folder, step)
    begun = checkpoint_name(40)
    kept_folder.make(begun)
    (kept_folder.folder / "notes.txt").touch()
    (kept_folder.folder / "step-mine").mkdir()
    kept_folder.prune("step-00000030")
    found, damaged = kept_folder.look()
    assert [each.name for each in found] == ["step-00000030", "step-00000020"]
    assert found[0].manifest == manifest(30)
    assert damaged == []
    assert {path.name for path in kept_folder.folder.iterdir()} == {
        "step-00000020", "step-00000030", begun, "notes.txt", "step-mine"
    }  # fmt: skip


def test_every_try_has_a_folder_of_its_own(tmp_path: Path) -> None:
    kept_folder = CheckpointFolder(tmp_path)
    names = [checkpoint_name(5, attempt) for attempt in range(3)]
    assert names == ["step-00000005", "step-00000005.1", "step-00000005.2"]
    for name in names:
        kept_folder.make(name)
    assert kept_folder.names() == names
    with pytest.raises(FileExistsError):
        kept_folder.make(names[0])
    assert all(map(is_name, ("step-00000005", "step-00000005.2")))
    assert not any(map(is_name, ("../step-00000005", "step-5", "step-00000005/..", "step-00000005\n")))


def test_a_folder_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    kept_folder = CheckpointFolder(tmp_path)
    kept_folder.make(checkpoint_name(5))
    shards(tmp_path / checkpoint_name(5))
    assert kept_folder.look() == ([], [])
    words = f"{tmp_path} has no complete checkpoint: starting with the first step"
    assert beginning(tmp_path, SHAPE, 9, resume=True) == Beginning(words=words)
    assert beginning(tmp_path, SHAPE, 9, resume=False) == Beginning()


def test_another_number_of_pipelines_goes_on_after_the_items_that_were_used(tmp_path: Path) -> None:
    complete(CheckpointFolder(tmp_path), 5)
    begins = beginning(tmp_path, CheckpointShape(2, 1, 1, 7), 9, resume=True)
    assert (begins.checkpoint, begins.step, begins.item) == ("step-00000005", 5, 60)


def test_all_steps_may_be_made_where_a_job_goes_on_by_itself(tmp_path: Path) -> None:
    complete(CheckpointFolder(tmp_path), 5)
    with pytest.raises(CheckpointError, match="has 5 steps already, and --steps asks for 5 in all"):
        beginning(tmp_path, SHAPE, 5, resume=True)
    assert beginning(tmp_path, SHAPE, 5, resume=True, may_be_finished=True).step == 5
    with pytest.raises(CheckpointError, match="has 5 steps already, and --steps asks for 4 in all"):
        beginning(tmp_path, SHAPE, 4, resume=True, may_be_finished=True)


def test_shards_by_layer_fit_any_cut_of_as_many_layers(tmp_path: Path) -> None:
    by_layer = CheckpointShape(2, 3, 1, 4, layers=6)
    complete(CheckpointFolder(tmp_path), 5, by_layer)
    assert (tmp_path / "step-00000005" / "layer-5-part-0").is_dir()
    for shape in (CheckpointShape(3, 2, 1, 6, layers=6), CheckpointShape(4, 1, 1, 7)):
        assert beginning(tmp_path, shape, 9, resume=True).step == 5
    said = "made by a job with 6 layers, and this one has 7: only the cut, pipelines and micro-batches"
    with pytest.raises(CheckpointError, match=said):
        beginning(tmp_path, CheckpointShape(2, 3, 1, 4, layers=7), 9, resume=True)


def no_shard_file(folder: Path) -> None:
    (folder / shard_name(1, 0) / "part.json").unlink()


def cut_short(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-20])


def edited(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"items": 240', '"items": 0'))


def empty(folder: Path) -> None:
    (folder / "manifest.json").write_text("")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (no_shard_file, "stage-1-part-0: damaged: part.json is missing"),
        (cut_short, "manifest.json: damaged: it is not JSON"),
        (edited, "manifest.json: damaged: the checksum does not match"),
        (empty, "manifest.json: damaged: it is not JSON"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    kept_folder = CheckpointFolder(tmp_path)
    complete(kept_folder, 10)
    damage(tmp_path / complete(kept_folder, 20))
    begins = beginning(tmp_path, SHAPE, 99, resume=True)
    assert begins.checkpoint == "step-00000010"
    assert said in begins.words
    damage = no_shard_file
    damage(tmp_path / "step-00000010")
    with pytest.raises(CheckpointError, match="damaged"):
        beginning(tmp_path, SHAPE, 99, resume=True)


@pytest.mark.parametrize(
    ("shape", "steps", "resume", "said"),
    [
        (SHAPE, 9, False, "there is a checkpoint of step 5 already: resume from it with --resume, or name"),
        (SHAPE, 5, True, "has 5 steps already, and --steps asks for 5"),
        (CheckpointShape(3, 3, 1, 4), 9, True, "made by a job with 2 stages, and this one has 3"),
        (
            CheckpointShape(2, 3, 2, 4),
            9,
            True,
            "made by a job with 1 tensor-parallel ranks, and this one has 2",
        ),
    ],
)
def test_what_a_run_cannot_go_on_from(
    tmp_path: Path, shape: CheckpointShape, steps: int, resume: bool, said: str
) -> None:
    complete(CheckpointFolder(tmp_path), 5)
    with pytest.raises(CheckpointError, match=said):
        beginning(tmp_path, shape, steps, resume=resume)


def test_a_manifest_that_speaks_of_any_number_of_shards(tmp_path: Path) -> None:
    """Their names were made before they were counted."""
    many = CheckpointShape(stages=1 << 40, pipelines=1, tensor=1 << 20, microbatches=1)
    (tmp_path / checkpoint_name(5)).mkdir()
    Manifest(5, 5, 0, many, {"stage-0-part-0": 1}).write(tmp_path / checkpoint_name(5))
    found, damaged = CheckpointFolder(tmp_path).look()
    assert found == [] and "does not name every stage" in damaged[0]


def test_a_manifest_of_any_size(tmp_path: Path) -> None:
    """As JSON, a file of this size takes gigabytes."""
    (tmp_path / checkpoint_name(5)).mkdir()
    with (tmp_path / checkpoint_name(5) / "manifest.json").open("wb") as file:
        file.truncate(1 << 26)
    found, damaged = CheckpointFolder(tmp_path).look()
    assert found == [] and "not a file of a checkpoint" in damaged[0]


def test_steps_that_take_other_data_are_refused(tmp_path: Path) -> None:
    """Other pipelines are not, as long as steps take as many micro-batches; what differs is told."""
    before = Origin("aaaa", (2, 1), 6)
    folder = tmp_path / complete(CheckpointFolder(tmp_path), 5)
    replace(manifest(5), origin=before).write(folder)
    assert Manifest.read(folder).origin == before
    now, after = replace(SHAPE, pipelines=1, microbatches=12), Origin("bbbb", (2, 1), 2)
    begins = beginning(tmp_path, now, 9, resume=True, origin=after)
    assert begins.words.endswith(
        "step-00000005 (pipelines 3 then, 1 now; workers 6 then, 2 now; job aaaa then, bbbb now)"
    )
    fewer = replace(SHAPE, pipelines=1)
    said = (
        r"step-00000005: its steps have taken 12 micro-batches \(3 x 4\), and those of this job take 4 "
        r"micro-batches \(1 x 4\): --accept-changes resumes from it all the same"
    )
    with pytest.raises(CheckpointError, match=said):
        beginning(tmp_path, fewer, 9, resume=True, origin=after)
    assert beginning(tmp_path, fewer, 9, resume=True, origin=after, accepts_changes=True).item == 60


def test_a_checkpoint_of_an_older_version_is_resumed_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete(CheckpointFolder(tmp_path), 5)
    caplog.set_level("INFO", "recycle_runtime.checkpoint.checkpoint_folder")
    fewer = replace(SHAPE, pipelines=1)
    assert beginning(tmp_path, fewer, 9, resume=True, origin=Origin("a", (), 2)).step == 5
    (line,) = caplog.messages
    assert "made by an older version" in line
