"""A checkpoint knows by which program it was made."""

from pathlib import Path

import pytest
import torch

from recycle_runtime.checkpoint.manifest import CheckpointError, Manifest, shape_of
from recycle_runtime.checkpoint.writer import restore, write_layers
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
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
    shape = shape_of(Bundle.read(tmp_path / "job.plan"))
    checkpoint = tmp_path / "step-00000000"
    checkpoint.mkdir()
    written = write_layers(chunks, checkpoint)
    Manifest(0, 0, 0, shape.with_shards(written), written).write(checkpoint)
    (same, *_), (other, *_) = chunks_of(tmp_path / "same"), chunks_of(tmp_path / "other", "CLIP_NORM = 5.0\n")
    restore(same, checkpoint, 0)
    with pytest.raises(CheckpointError, match=r"another source \(CLIP_NORM changed\): --accept-changes"):
        restore(other, checkpoint, 0)
    restore(other, checkpoint, 0, accepts_changes=True)
