"""The moment of the copy: a state between two steps, whatever of the next one has been computed by then."""

from pathlib import Path
from typing import Any

import pytest
import torch

from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest
from recycle_runtime.checkpoint.writer import BackgroundWriter, restore
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.checkpoints import (
    CheckpointFailed,
    CheckpointMissed,
    CheckpointReply,
    CheckpointWritten,
)
from recycle_runtime.state.host_copy import HostCopy
from recycle_runtime.state.layer_state import copied_state
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.tree import put_together, take_apart
from tests.runtime.checkpoint.runs import JOB, plans, with_dropout
from tests.runtime.training.compare import changed, plan_file
from tests.runtime.training.test_batch_norm import BATCH_NORM
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import unit_job

STEPS = 4


def flat(state: Any) -> dict[str, torch.Tensor]:
    _, tensors = take_apart(state)
    return tensors


@pytest.mark.parametrize("clip", [0.05, 1.2, 1000.0])
def test_every_copy_is_a_run_that_ended_there(
    tmp_path: Path, clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With steps that are made before the norm is known and made again, and buffers that forwards change."""
    program = changed(tmp_path, BATCH_NORM, f"CLIP_NORM = {clip}")
    plan = plan_file(tmp_path, unit_job(2, 2, 3, (3, 2)), [])
    copies: dict[tuple[int, int], list[Any]] = {}

    def settled(chunk: Chunk) -> None:
        states = [put_together(shard.tree, shard.tensors) for shard in copied_state([chunk], HostCopy())]
        copies.setdefault((id(chunk), chunk.applied), []).append(states)

    monkeypatch.setattr(Chunk, "settled", settled)
    _, workers = train_in_threads(plan, program, 0, STEPS)
    places = {id(worker.chunks[place[1]]): place for place, worker in workers.items()}
    taken = {(places[key], applied): states for (key, applied), states in copies.items()}
    monkeypatch.undo()
    for steps in range(1, STEPS + 1):
        _, ended = train_in_threads(plan, program, 0, steps)
        for place, worker in ended.items():
            expected = flat([layer.state() for layer in worker.chunks[place[1]].layers])
            assert taken[place, steps]
            for state in taken[place, steps]:
                found = flat(state)
                assert found.keys() == expected.keys()
                for name, tensor in expected.items():
                    torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


def chunk_of(folder: Path, seed: int = 0) -> Chunk:
    bundle = Bundle.read(plans(folder / "job.plan", JOB))
    return build_chunks(load_program(with_dropout(folder)), bundle, 1, seed, torch.device("cpu"))[1]


def kept(folder: Path, chunk: Chunk) -> Path:
    """A checkpoint with this chunk in it."""
    heard: list[CheckpointReply] = []
    writer = BackgroundWriter(folder, heard.append)
    (folder / "step-00000000").mkdir()
    writer.write([chunk], 0, "step-00000000")
    writer.wait()
    (written,) = heard
    assert isinstance(written, CheckpointWritten)
    shape = CheckpointShape(2, 2, 1, 2, layers=10)
    for name in set(shape.shards) - written.shards.keys():
        (folder / "step-00000000" / name).mkdir()
        (folder / "step-00000000" / name / "part.json").touch()
    shards = dict.fromkeys(shape.shards, 0) | dict(written.shards)
    Manifest(0, 0, 0, shape, shards).write(folder / "step-00000000")
    return folder / "step-00000000"


def test_a_chunk_becomes_what_was_written(tmp_path: Path) -> None:
    chunk = chunk_of(tmp_path)
    with torch.no_grad():
        for parameter in chunk.module.parameters():
            parameter.add_(1.0)
    checkpoint = kept(tmp_path, chunk)
    fresh = chunk_of(tmp_path)
    restore(fresh, checkpoint, 0)
    assert fresh.is_part_of_run
    for name, tensor in chunk.module.state_dict().items():
        assert torch.equal(fresh.module.state_dict()[name], tensor)


def test_a_checkpoint_of_another_program_or_seed_is_refused(tmp_path: Path) -> None:
    checkpoint = kept(tmp_path, chunk_of(tmp_path))
    with pytest.raises(CheckpointError, match="has seed 0, and this run has 3"):
        restore(chunk_of(tmp_path, seed=3), checkpoint, 0)
    other = chunk_of(tmp_path)
    other.layers[0].module.add_module("more", torch.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="does not fit the program's layer: ") as caught:
        restore(other, checkpoint, 0)
    assert "\n" not in str(caught.value)


def test_a_writer_says_when_it_is_late_or_cannot_write(tmp_path: Path) -> None:
    heard: list[CheckpointReply] = []
    chunk = chunk_of(tmp_path)
    writer = BackgroundWriter(tmp_path / "nowhere", heard.append)
    writer.write([chunk], 3, "step-00000003")
    writer.write([chunk], 0, "../step-00000000")
    writer.write([chunk], 0, "step-00000000")
    writer.wait()
    late, wrong_name, nowhere = heard
    assert late == CheckpointMissed("step-00000003")
    assert isinstance(wrong_name, CheckpointFailed) and isinstance(nowhere, CheckpointFailed)
    assert "not the name of a checkpoint" in wrong_name.why
    assert "nowhere" in nowhere.why
