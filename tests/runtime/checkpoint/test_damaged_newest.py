"""A damaged newest checkpoint: the one before it is used, and that is said."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_runtime.checkpoint.checkpoint_folder import CheckpointFolder, beginning
from recycle_runtime.checkpoint.manifest import shape_of
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.state.names import CheckpointError
from tests.runtime.checkpoint.conftest import Stopped
from tests.runtime.checkpoint.runs import run


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of a tensor": lambda shard: _flip(shard / "tensors.bin", 5),
    "the end of the tensors": lambda shard: _cut(shard / "tensors.bin"),
    "bytes behind the tensors": lambda shard: (
        (shard / "tensors.bin").write_bytes((shard / "tensors.bin").read_bytes() + b"!") and None
    ),
    "no tensors": lambda shard: (shard / "tensors.bin").unlink(),
    "a description that is cut": lambda shard: _cut(shard / "part.json"),
    "a description that was changed": lambda shard: _flip(shard / "part.json", 40),
    "an empty description": lambda shard: (shard / "part.json").write_bytes(b""),
}


def damaged(stopped: Stopped, folder: Path, damage: Callable[[Path], object]) -> Path:
    """A copy of its checkpoints, with damage to the last shard of the newest."""
    kept = folder / "kept"
    shutil.copytree(stopped.kept, kept)
    newest = kept / CheckpointFolder(kept).names()[-1]
    damage(max(path for path in newest.iterdir() if path.is_dir()))
    return kept


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_newest_that_is_whole(stopped: Stopped, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    kept = damaged(stopped, tmp_path, damage)
    newest, before = CheckpointFolder(stopped.kept).look()[0]
    shape = shape_of(Bundle.read(stopped.bundle))
    begins = beginning(kept, shape, 9, resume=True, reads_all=True)
    assert (begins.checkpoint, begins.step) == (before.name, before.manifest.step)
    words = f"resuming with step {begins.step} from {kept / before.name} (not used: {kept / newest.name}"
    assert begins.words.startswith(words)


def test_none_is_whole(stopped: Stopped, tmp_path: Path) -> None:
    kept = damaged(stopped, tmp_path, DAMAGES["no tensors"])
    for path in kept.glob("*/*/tensors.bin"):
        _cut(path)
    shape = shape_of(Bundle.read(stopped.bundle))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is as it was written"):
        beginning(kept, shape, 9, resume=True, reads_all=True)


@pytest.mark.slow
def test_a_run_goes_on_from_it(stopped: Stopped, tmp_path: Path) -> None:
    kept = damaged(stopped, tmp_path, DAMAGES["a bit of a tensor"])
    result, events = run(stopped.bundle, stopped.program, 6, checkpoint=str(kept), resume=True)
    before = CheckpointFolder(stopped.kept).look()[0][1].manifest.step
    assert [step.step for step in result.steps] == list(range(before, 6))
    assert events[0].startswith(f"resuming with step {before} from ")
    assert "not used: " in events[0]
