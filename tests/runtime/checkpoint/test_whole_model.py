"""A checkpoint as a whole model: its names, its tensors, and who else can read them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from recycle_runtime.checkpoint.manifest import CheckpointShape, Manifest
from recycle_runtime.checkpoint.whole_model import CheckpointReader, CheckpointWeights
from recycle_runtime.checkpoint.writer import BackgroundWriter
from recycle_runtime.cli.main import main
from recycle_runtime.execution.chunk import build_chunks, build_module
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.checkpoints import CheckpointReply, CheckpointWritten
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.weights.named import open_weights
from tests.runtime.checkpoint.runs import plans
from tests.runtime.training.compare import MLP, changed
from tests.support.jobs import unit_job

LAYERS = 10


AVERAGED = """
from torch.optim.swa_utils import AveragedModel

def moves_with_steps(module, optimizer):
    return AveragedModel(module)
"""


def write(folder: Path, cut: Sequence[int], step: int = 0, program: str = MLP) -> Path:
    """A complete checkpoint of the model as it is built, in shards by layer."""
    bundle = Bundle.read(plans(folder / "a.plan", replace(unit_job(len(cut), 1, 2), cut=tuple(cut))))
    replies: list[CheckpointReply] = []
    name = f"step-{step:08}"
    (folder / "kept" / name).mkdir(parents=True)
    writer = BackgroundWriter(folder / "kept", replies.append)
    for stage in range(len(cut)):
        chunks = build_chunks(load_program(program), bundle, stage, 0, torch.device("cpu")).values()
        for chunk in chunks:
            chunk.stepper.progress = chunk.stepper.progress._replace(steps=step)
            for layer in chunk.layers:
                averages: Any = {} if layer.stepped is None else layer.stepped.moving.parts
                for average in averages.values():
                    for value in average.parameters():
                        value.data.mul_(2)
        writer.write(list(chunks), step, name)
        writer.wait()
    shards: dict[str, int] = {}
    for reply in replies:
        assert isinstance(reply, CheckpointWritten)
        shards |= reply.shards
    Manifest(step, 0, 0, CheckpointShape(len(cut), 1, 1, 2, LAYERS), shards).write(folder / "kept" / name)
    return folder / "kept" / name


def model() -> torch.nn.Module:
    return build_module(load_program(MLP), 0, 1, 0)


@pytest.fixture(params=[(10,), (4, 6)], ids=str)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path, request.param)


def test_names_and_tensors_are_those_of_the_model(kept: Path) -> None:
    weights, expected = CheckpointWeights(kept), model().state_dict()
    assert list(weights) == list(expected)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert weights.size == sum(tensor.nbytes for tensor in expected.values())
    half = CheckpointWeights(kept, dtype="bfloat16")
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}


def test_a_folder_of_checkpoints_is_its_newest(tmp_path: Path) -> None:
    write(tmp_path, (10,))
    newest = write(tmp_path, (10,), 7)
    assert CheckpointWeights(tmp_path / "kept").folder == newest


def test_averages_are_in_the_place_of_the_weights(tmp_path: Path) -> None:
    kept, expected = write(tmp_path, (4, 6), program=changed(tmp_path, MLP, AVERAGED)), model().state_dict()
    averages = CheckpointWeights(kept, average=True)
    assert list(averages) == list(expected)
    assert all(torch.equal(averages[name], 2 * value) for name, value in model().named_parameters())
    assert main(["export", str(kept), "--average", "--format", "torch", "-o", str(tmp_path / "out")]) == 0
    exported = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(exported[name], averages[name]) for name in expected)
    (tmp_path / "plain").mkdir()
    with pytest.raises(CheckpointError, match="it holds no average of weights"):
        CheckpointWeights(write(tmp_path / "plain", (10,)), average=True)


def test_torch_reads_it_into_a_model(kept: Path) -> None:
    other = model()
    for parameter in other.parameters():
        torch.nn.init.zeros_(parameter)
    state = other.state_dict()
    dcp.load(state, storage_reader=CheckpointReader(kept), no_dist=True)
    other.load_state_dict(state)
    expected = model().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.state_dict().items())


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        CheckpointWeights(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"manifest\.json: no such file"):
        CheckpointWeights(tmp_path)
    (tmp_path / "step-00000003").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint in it is complete"):
        CheckpointWeights(tmp_path)


def test_a_tensor_that_was_changed_on_disk(kept: Path) -> None:
    path = kept / "layer-3-part-0" / "tensors.bin"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    weights = CheckpointWeights(kept)
    with pytest.raises(CheckpointError, match=r"the checksum of .* does not match"):
        dict(weights)


@pytest.mark.parametrize("form", ["safetensors", "torch", "dcp"])
def test_export(kept: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out"
    assert main(["export", str(kept), "-o", str(target), "--format", form, "--max-file-size", "1KB"]) == 0
    assert f"to {target}" in capsys.readouterr().err
    expected = model().state_dict()
    if form == "dcp":
        found = {name: torch.zeros_like(tensor) for name, tensor in expected.items()}
        dcp.load(found, checkpoint_id=target, no_dist=True)
    else:
        found = dict(open_weights(target))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_export_with_another_type_and_a_config(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "like").mkdir()
    (tmp_path / "like" / "config.json").write_text(json.dumps({"model_type": "own"}))
    target = tmp_path / "out"
    options = ["--dtype", "float16", "--config-from", str(tmp_path / "like")]
    assert main(["--quiet", "export", str(kept), "-o", str(target), *options]) == 0
    assert {tensor.dtype for tensor in open_weights(target).values()} == {torch.float16}
    assert json.loads((target / "config.json").read_text()) == {"model_type": "own"}


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (["-o", "{full}"], "is not empty", 2),
        (["-o", "{file}"], "is a file", 2),
        (["-o", "{new}", "--max-file-size", "many"], "must be like 5GB", 2),
        (["-o", "{new}", "--config-from", "{full}"], "no config.json", 2),
    ],
)
def test_export_that_makes_no_sense(
    kept: Path, tmp_path: Path, options: list[str], words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    places = {"full": str(tmp_path), "file": str(tmp_path / "file"), "new": str(tmp_path / "new")}
    assert main(["export", str(kept), *(option.format(**places) for option in options)]) == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_export_of_what_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path / "none"), "-o", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err == f"recycle-run: error: {tmp_path / 'none'}: there is no such folder\n"
