"""A forward that waits for its device is told by its line; the first of a buffer may wait."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from recycle_runtime.execution import backward_watch
from recycle_runtime.execution.chunk import build_chunks
from recycle_runtime.execution.cuda_graphs import ChunkGraphs, GraphedWork, InputSpec
from recycle_runtime.execution.forward_random import ForwardRandom
from recycle_runtime.execution.optimizer import gradient_part
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


def test_a_captured_backward_marks_where_gradients_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the last layers, while the first are still computed."""

    def captured(self: GraphedWork, work: Callable[[], None], generators: Any = ()) -> None:
        del self, generators
        work()

    for name in ("graph_pool_handle", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(GraphedWork, "_captured", captured)
    monkeypatch.setattr(ForwardRandom, "generators", lambda *_: {})  # pyright: ignore
    monkeypatch.setattr(ForwardRandom, "capturing", lambda *_: nullcontext())  # pyright: ignore
    monkeypatch.setattr(gradient_part, "BUCKET_BYTES", 1)
    path = tmp_path / "program.py"
    layers = '[("first", Block()), ("second", Block()), ("third", Block())]'
    path.write_text(PROGRAM.format(waits="pass").replace('[("block", Block())]', layers))
    [chunk] = build_chunks(load_program(path), Bundle.read(PLAN), 0, 0, torch.device("cpu")).values()
    biases = [layer.parameters[1] for layer in chunk.layers]

    def written(_: torch.device) -> list[bool]:
        return [bool(cast(torch.Tensor, each.grad).any()) for each in biases]

    monkeypatch.setattr(backward_watch, "mark_on", written)
    shape = (torch.Size([2, 4]), torch.float32)
    look = InputSpec((shape,), (), shape, 1.0, splits=False)
    groups = chunk.stepper.gradients.early_groups
    assert len(groups) == 5 and GraphedWork(chunk, look).complete == [
        [False, False, True], [False, False, True], [False, True, True], [False, True, True]
    ]  # fmt: skip
    assert not GraphedWork(chunk, look._replace(splits=True)).complete
