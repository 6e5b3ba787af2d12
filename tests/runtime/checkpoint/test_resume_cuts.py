"""A run that is stopped goes on under another cut, with other numbers of stages, pipelines and workers."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.planner import ReadItem

from recycle_runtime.checkpoint import manifest as manifests
from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest, write_sealed
from recycle_runtime.checkpoint.storage import ShardReader
from recycle_runtime.checkpoint.writer import BackgroundWriter, restore
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.launcher.local import RunError
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.checkpoints import CheckpointReply, CheckpointWritten
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.ownership import Ownership
from recycle_runtime.transport.interface import PeerSum
from recycle_runtime.weights.tensor_bytes import size_of
from tests.compiler.test_sharded import sharded
from tests.runtime.checkpoint.conftest import Stopped
from tests.runtime.checkpoint.runs import losses, plans, run, saved, train_in_turns
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import MLP, changed
from tests.runtime.training.test_batch_norm import BATCH_NORM
from tests.support.jobs import unit_job

LAYERS = 10
PER_STEP = 4


def cut_plans(folder: Path, cut: Sequence[int], pipelines: int) -> str:
    """Plans for the program's layers cut this way; all of them with as many micro-batches in a step."""
    job = replace(unit_job(len(cut), pipelines, PER_STEP // pipelines), cut=tuple(cut))
    return plans(folder / f"{'-'.join(map(str, cut))}.plan", job)


@pytest.fixture
def kept(stopped: Stopped, tmp_path: Path) -> tuple[Path, str]:
    """Five steps of two pipelines of two stages, and the program."""
    return shutil.copytree(stopped.kept, tmp_path / "kept"), stopped.program


@pytest.mark.parametrize(
    ("cut", "pipelines"),
    [
        ((3, 4, 3), 1),
        pytest.param((7, 3), 2, marks=pytest.mark.slow),
        pytest.param((10,), 4, marks=pytest.mark.slow),
    ],
)
def test_another_cut(kept: tuple[Path, str], tmp_path: Path, cut: tuple[int, ...], pipelines: int) -> None:
    folder, program = kept
    bundle = cut_plans(tmp_path, cut, pipelines)
    resumed, events = run(bundle, program, 8, save=str(tmp_path), checkpoint=str(folder), resume=True)
    assert events[0].startswith(f"resuming with step 5 from {folder / 'step-00000005'} (")
    assert resumed.begins == [5]
    alone = train_alone(program, len(cut), PER_STEP, 8, cut=cut)
    assert losses(resumed) == pytest.approx({step: alone.losses[step] for step in range(5, 8)}, rel=1e-12)
    states = saved(tmp_path)
    assert len(states) == len(cut) * pipelines
    for name, state in states.items():
        for key, tensor in alone.states[int(name.split("-")[2])].items():
            torch.testing.assert_close(state[key], tensor, rtol=1e-12, atol=1e-12)
    names = sorted(path.name for path in folder.glob("step-*"))
    assert names == ["step-00000005", "step-00000008"]
    newest = folder / names[-1]
    assert sorted(path.name for path in newest.iterdir() if path.is_dir()) == sorted(
        f"layer-{layer}-part-0" for layer in range(LAYERS)
    )


@pytest.mark.slow
def test_other_micro_batches_too(kept: tuple[Path, str], tmp_path: Path) -> None:
    """Data goes on with the first item that was not used, in steps of another size."""
    folder, program = kept
    bundle = plans(tmp_path / "other.plan", replace(unit_job(3, 1, 3), cut=(2, 2, 6)))
    options: dict[str, Any] = {"checkpoint": str(folder), "resume": True}
    with pytest.raises(RunError, match=r"have taken 4 micro-batches .* take 3 .*: --accept-changes"):
        run(bundle, program, 7, **options)
    resumed, _ = run(bundle, program, 7, **options, accepts_changes=True)
    expected, _ = train_in_turns(program, 1, [(5, 4), (2, 3)])
    assert losses(resumed) == pytest.approx({5: expected[5], 6: expected[6]}, rel=1e-12)


@pytest.mark.slow
def test_a_plan_that_says_nothing_about_layers(kept: tuple[Path, str], tmp_path: Path) -> None:
    folder, program = kept
    bundle = plans(tmp_path / "plain.plan", unit_job(4, 1, PER_STEP))
    resumed, _ = run(bundle, program, 6, checkpoint=str(folder), resume=True)
    alone = train_alone(program, 4, PER_STEP, 6)
    assert losses(resumed) == pytest.approx({5: alone.losses[5]}, rel=1e-12)


@pytest.mark.slow
def test_other_layers_are_refused(kept: tuple[Path, str], tmp_path: Path) -> None:
    folder, program = kept
    fewer = changed(tmp_path, program, "LAYERS = 7")
    checkpoint = str(folder)
    with pytest.raises(RunError, match="made by a job with 10 layers, and this one has 9: only the cut, "):
        run(cut_plans(tmp_path, (4, 5), 2), fewer, 6, checkpoint=checkpoint, resume=True)
    plain = plans(tmp_path / "plain.plan", unit_job(2, 1, PER_STEP))
    with pytest.raises(RunError, match="has 10 layers, and the program has 9"):
        run(plain, fewer, 6, checkpoint=checkpoint, resume=True, accepts_changes=True)
    # No other name of the file: it would be the program of another job.
    (tmp_path / "names").mkdir()
    named = changed(tmp_path / "names", program, "_layers = layers\nlayers = lambda: _layers()[::-1]")
    with pytest.raises(RunError, match=r"has name .*, and this run has"):
        run(cut_plans(tmp_path, (4, 6), 2), named, 6, checkpoint=checkpoint, resume=True)


def stage_of(folder: Path, program: str) -> Chunk:
    bundle = Bundle.read(plans(folder / "job.plan", unit_job(1, 1, 2)))
    return build_chunks(load_program(program), bundle, 0, 0, torch.device("cpu"))[0]


def written(folder: Path, chunk: Chunk) -> Path:
    """A checkpoint of one stage."""
    heard: list[CheckpointReply] = []
    writer = BackgroundWriter(folder, heard.append)
    name = f"step-{chunk.applied:08}"
    (folder / name).mkdir()
    writer.write([chunk], chunk.applied, name)
    writer.wait()
    (reply,) = heard
    assert isinstance(reply, CheckpointWritten)
    shape = CheckpointShape(1, 1, 1, 2).with_shards(reply.shards)
    Manifest(chunk.applied, 0, 0, shape, dict(reply.shards)).write(folder / name)
    return folder / name


def test_shards_by_stage_and_by_layer_are_not_mixed(tmp_path: Path) -> None:
    for name, program in (("stages", BATCH_NORM), ("layers", MLP)):
        (tmp_path / name).mkdir()
        written(tmp_path / name, stage_of(tmp_path, program))
    with pytest.raises(CheckpointError, match="made by stage, and the program gives layers"):
        restore(stage_of(tmp_path, MLP), tmp_path / "stages" / "step-00000000", 0)
    with pytest.raises(CheckpointError, match="made by layer, and the program gives whole stages"):
        restore(stage_of(tmp_path, BATCH_NORM), tmp_path / "layers" / "step-00000000", 0)


def _sharded_chunk(folder: Path, pipelines: int, owners: int = 2) -> Chunk:
    job = replace(sharded(unit_job(1, pipelines, 2), owners), cut=(LAYERS,))
    bundle = Bundle.read(plans(folder / f"{pipelines}.plan", job))
    return build_chunks(load_program(MLP), bundle, 0, 0, torch.device("cpu"))[0]


def test_a_process_reads_what_it_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, and its shards: of as many as there were those alone, of another number what has its rows."""

    def alone(sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None) -> None:
        """Nobody else holds the chunk."""

    chunk = _sharded_chunk(tmp_path, 4)
    Ownership(chunk, 2, 0, 1, alone).agree()
    for parameter in chunk.stepper.gradients.parameters:
        parameter.grad = torch.full_like(parameter, 0.5)
    chunk.stepper.reduce(lambda _: None, start_sums=alone)
    chunk.stepper.step(lambda _: None)
    chunk.stepper.validate(lambda _: None)
    chunk.stepper.settle()
    checkpoint = written(tmp_path, chunk)
    read: list[int] = []
    fill = ShardReader.fill

    def counted(self: ShardReader, item: ReadItem, target: torch.Tensor) -> None:
        read.append(size_of(target))
        fill(self, item, target)

    monkeypatch.setattr(ShardReader, "fill", counted)
    weights = sum(size_of(value) for value in chunk.module.state_dict().values())
    for pipelines, most in ((4, 1), (2, 2), (8, 1)):
        read.clear()
        again = _sharded_chunk(tmp_path, pipelines)
        restore(again, checkpoint, 1)
        assert sum(read) == weights
        for layer, mine in zip(again.layers, chunk.layers, strict=True):
            read.clear()
            layer.own(1)
            if pipelines == 4:
                assert sum(read) == mine.owned[1].state_bytes if 1 in mine.owned else not read
                if 1 in mine.owned:
                    found, kept = (one.shard_state(1) for one in (layer, mine))
                    torch.testing.assert_close(found, kept, rtol=0, atol=0)
            parts = sorted((mine.shard_bytes(shard) for shard in range(4)), reverse=True)
            assert sum(read) <= sum(parts[: most + 1])


def test_files_of_the_first_format_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were by stage, and said nothing about layers."""
    monkeypatch.setattr(manifests, "VERSION", 1)
    chunk = stage_of(tmp_path, BATCH_NORM)
    with torch.no_grad():
        for parameter in chunk.module.parameters():
            parameter.add_(1.0)
    checkpoint = written(tmp_path, chunk)
    fields: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())
    for name in ("format", "version", "crc32"):
        fields.pop(name)
    del fields["shape"]["layers"]
    write_sealed(checkpoint / "manifest.json", "checkpoint manifest", fields)
    monkeypatch.undo()
    fresh = stage_of(tmp_path, BATCH_NORM)
    restore(fresh, checkpoint, 0)
    for name, tensor in chunk.module.state_dict().items():
        assert torch.equal(fresh.module.state_dict()[name], tensor)
