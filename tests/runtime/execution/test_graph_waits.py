"""A forward that waits for its device is told by its line; the first of a buffer may wait."""

from pathlib import Path

import pytest
import torch

from recycle_runtime.execution.chunk import build_chunks
from recycle_runtime.execution.cuda_graphs import ChunkGraphs, InputSpec
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program

WAITS = 'warnings.warn("called a synchronizing CUDA operation")'
"""As torch says it, where the line calls an operation that waits."""
PROGRAM = """
import torch, warnings
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, value):
        {waits}
        return self.linear(value)
def layers():
    return [("block", Block())]
def loss(output, target):
    return ((output - target) ** 2).mean()
def batches(seed):
    while True:
        yield torch.ones(2, 4), torch.ones(2, 4)
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
PLAN = Path(__file__).parents[2] / "data" / "one-worker.plan"
LOOK = InputSpec((), (), None, 1.0, splits=False)


@pytest.mark.parametrize("has_group", [False, True], ids=["alone", "tensor-parallel"])
def test_torch_warns_only_of_what_may_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_group: bool
) -> None:
    """It does so for all threads of the process."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(waits="pass"))
    [chunk] = build_chunks(load_program(path), Bundle.read(PLAN), 0, 0, torch.device("cpu")).values()
    object.__setattr__(chunk.setting, "group", object() if has_group else None)
    graphs = ChunkGraphs(chunk)
    for buffer in (0, 1, 1):
        graphs.find(buffer, LOOK)
        with graphs.watching():
            chunk.forward([torch.ones(2, 4)], 0, 0)
    assert modes == ([] if has_group else ["warn", "default"])
    if has_group:
        graphs.between_steps()
        assert chunk.cannot_capture == "its forwards may talk to other tensor-parallel ranks"


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_the_line_that_waits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(waits=WAITS))
    [chunk] = build_chunks(load_program(path), Bundle.read(PLAN), 0, 0, torch.device("cpu")).values()
    object.__setattr__(chunk.setting, "graphs", "on")
    graphs = ChunkGraphs(chunk)

    def forward(buffer: int) -> None:
        assert graphs.find(buffer, LOOK) is None
        with graphs.watching():
            chunk.forward([torch.ones(2, 4)], 0, 0)

    forward(0)
    forward(1)
    graphs.between_steps()
    assert not chunk.cannot_capture, "what a first forward sets up is no reason"
    forward(1)
    with pytest.raises(ProgramError) as told:
        graphs.between_steps()
    line = 1 + PROGRAM.split("\n").index("        {waits}")
    place = f"{path}:{line}, in forward: `{WAITS}`"
    assert chunk.cannot_capture == f"its forwards wait for the device, as .item() does: {place}"
    assert place in str(told.value)
    assert f'File "{path}", line {line}, in forward' in str(told.value)
