"""A checkpoint knows by which program it was made, on what data, in which order."""

import logging
from pathlib import Path

import pytest
import torch

from recycle_runtime.checkpoint.manifest import Manifest, shape_of
from recycle_runtime.checkpoint.settings import other_options
from recycle_runtime.checkpoint.writer import restore, write_layers
from recycle_runtime.data.microbatches import OtherDataError
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.program.source_digest import changed_parts, source_digest
from recycle_runtime.state.names import CheckpointError
from tests.runtime.checkpoint.runs import JOB, plans, with_dropout


def chunks_of(folder: Path, more: str = "") -> list[Chunk]:
    folder.mkdir(exist_ok=True)
    bundle = Bundle.read(plans(folder / "job.plan", JOB))
    program = load_program(with_dropout(folder, more))
    return [
        build_chunks(program, bundle, stage, 0, torch.device("cpu"))[stage] for stage in range(JOB.stages)
    ]


def test_another_source_of_equal_shapes_is_refused(tmp_path: Path) -> None:
    """It was resumed from in silence."""
    chunks = chunks_of(tmp_path)
    checkpoint = written(tmp_path, chunks)
    (same, *_), (other, *_) = chunks_of(tmp_path / "same"), chunks_of(tmp_path / "other", "CLIP_NORM = 5.0\n")
    restore(same, checkpoint, 0)
    said = r"another source \(CLIP_NORM changed; source \w{8} then, \w{8} now\): --accept-changes"
    with pytest.raises(CheckpointError, match=said):
        restore(other, checkpoint, 0)
    restore(other, checkpoint, 0, accepts_changes=True)


def test_a_module_beside_it_that_has_changed_is_named(tmp_path: Path) -> None:
    """A module that the program imports is part of its source."""
    package = tmp_path / "models_of_this_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "blocks.py").write_text("WIDTH = 4\n")
    imports = "from models_of_this_test.blocks import WIDTH\n"
    before = source_digest(Path(with_dropout(tmp_path, imports)))
    (package / "blocks.py").write_text("# As before.\nWIDTH = 4\n")
    assert source_digest(Path(with_dropout(tmp_path, imports))) == before
    (package / "blocks.py").write_text("WIDTH = 5\n")
    after = source_digest(Path(with_dropout(tmp_path, imports)))
    assert changed_parts(before, after) == ["models_of_this_test/blocks.py"]
    # Lines of older versions know nothing of modules.
    older = " ".join(word for word in before.split() if "." not in word)
    assert changed_parts(older, after) == []


def test_other_arguments_and_options_are_told(tmp_path: Path) -> None:
    """The rate asked for was left aside in silence."""
    chunks = chunks_of(tmp_path)
    for chunk in chunks:
        chunk.program.script_arguments = ("0.01", "6 steps")
    checkpoint = written(tmp_path, chunks)
    first, *_ = chunks_of(tmp_path / "same")
    first.program.script_arguments = ("0.01", "6 steps")
    assert restore(first, checkpoint, 0) == []
    first, *_, last = chunks_of(tmp_path / "other")
    for chunk in (first, last):
        chunk.program.script_arguments = ("0.5",)
        groups = [layer.optimizer.param_groups[0] for layer in chunk.layers if layer.optimizer is not None]
        saved = groups[0]["lr"]
        for group in groups:
            group["lr"] = 0.5
        assert restore(chunk, checkpoint, 0) == [
            "the script's arguments are '0.5', and were \"0.01 '6 steps'\"",
            f"the optimizer goes on as it was saved, with lr {saved} in place of 0.5",
        ]


def test_what_a_scheduler_moves_is_no_difference() -> None:
    saved, made = {"lr": 0.1, "initial_lr": 0.2}, {"lr": 0.2, "initial_lr": 0.2}
    assert list(other_options({0: [made]}, {0: [saved]})) == []
    (words,) = other_options({0: [made | {"initial_lr": 0.3, "weight_decay": 1.0}]}, {0: [saved]})
    assert words.endswith("with initial_lr 0.2 in place of 0.3")


def test_a_source_that_is_not_known_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chunks = chunks_of(tmp_path)
    for chunk in chunks:
        chunk.program.source_digest = ""
    checkpoint = written(tmp_path, chunks)
    (same, *_) = chunks_of(tmp_path / "same")
    with caplog.at_level(logging.WARNING, "recycle_runtime"):
        for _ in range(2):
            restore(same, checkpoint, 0)
    # Torch logs much of its own.
    (told,) = [each.getMessage() for each in caplog.records if each.name.startswith("recycle_runtime")]
    assert told.startswith(f"{checkpoint}: ") and "whether it has changed is not known" in told


DATA = """
del batches
_SAMPLES = [(torch.ones(2, WIDTH, dtype=torch.float64),) * 2] * {length}
data = lambda seed: _SAMPLES
"""


def written(folder: Path, chunks: list[Chunk]) -> Path:
    """A checkpoint of these, as they are."""
    shape = shape_of(Bundle.read(folder / "job.plan"))
    checkpoint = folder / "step-00000000"
    checkpoint.mkdir()
    shards = write_layers(chunks, checkpoint)
    Manifest(0, 0, 0, shape.with_shards(shards), shards).write(checkpoint)
    return checkpoint


def test_data_of_another_length_is_refused(tmp_path: Path) -> None:
    chunks = chunks_of(tmp_path, DATA.format(length=30))
    for chunk in chunks:
        chunk.data.item(0, 0)
    checkpoint = written(tmp_path, chunks)
    (same, *_) = chunks_of(tmp_path / "same", DATA.format(length=30))
    restore(same, checkpoint, 0)
    same.data.approach(0)
    # The source that makes it may be the same, and read a file.
    other = chunks_of(tmp_path / "other", DATA.format(length=30))[0]
    restore(other, checkpoint, 0)
    said = r"step-00000000: made with data of 30 micro-batches in an epoch, and .* has 29: --accept-changes"
    with pytest.raises(OtherDataError, match=said):
        other.data.use([(torch.ones(2), torch.ones(2))] * 29, 0)
    (accepted, *_) = chunks_of(tmp_path / "accepted", DATA.format(length=29))
    restore(accepted, checkpoint, 0, accepts_changes=True)
    accepted.data.item(0, 0)
