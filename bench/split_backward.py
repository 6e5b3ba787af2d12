"""Cost of splitting backward in two: `python -m bench.split_backward [--device cuda]`.

(I + W) / B: input gradient, then weight gradient, against the whole backward of plain autograd. Ours, and
torch.distributed.pipelining's. The three take turns, and every number is a median over the turns. Gradients
are there already, as for all micro-batches of a step but the first. Needs torch and recycle_runtime alone.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.pipelining import _backward as torch_split  # pyright: ignore[reportPrivateUsage]

from bench.programs import llama
from recycle_runtime.execution.split_backward import prepare

NAMES = ("whole", "ours", "torch's")
HEADER = ("stage", "backward", "F ms", "I ms", "W ms", "(I+W)/B", "peak MiB")


class Block(nn.Module):
    """A transformer block as GPT has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, value: Tensor) -> Tensor:
        batch, tokens, width = value.shape
        parts = self.projections(self.before_attention(value)).view(batch, tokens, 3, self.heads, -1)
        query, key, content = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, content, is_causal=True)
        value = value + self.mix(seen.transpose(1, 2).reshape(batch, tokens, width))
        return value + self.down(F.gelu(self.up(self.before_layers(value))))


def blocks(width: int, count: int) -> nn.Module:
    """A stage of transformer blocks."""
    return nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(count)))


def layers(width: int, count: int) -> nn.Module:
    """A stage of linear layers with ReLU."""
    return nn.Sequential(*(part for _ in range(count) for part in (nn.Linear(width, width), nn.ReLU())))


def llama_blocks(count: int) -> nn.Module:
    """A stage of blocks of bench/programs/llama.py."""
    return nn.Sequential(*(llama.Block() for _ in range(count)))


@dataclass(frozen=True, slots=True)
class Case:
    """One stage to measure."""

    name: str
    stage: nn.Module
    shape: tuple[int, int, int]
    """Sequences, tokens, width."""
    turns: int
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    """Products in bf16, weights and gradients as they are."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Milliseconds of one micro-batch, and bytes beyond what was there before."""

    forward: float
    first: float
    second: float
    peak: int


Halves = tuple[Callable[[Tensor, Tensor, Tensor], Any], Callable[[Any], object]]
"""From input, output and gradient to what is left to do; and that."""


def whole(_: nn.Module) -> Halves:
    return lambda value, output, gradient: torch.autograd.backward([output], [gradient]), lambda rest: None


def ours(stage: nn.Module) -> Halves:
    split = prepare(stage)
    return lambda value, output, gradient: split.backward_input([output], [gradient]), lambda rest: rest.run()


def torchs(stage: nn.Module) -> Halves:
    api: Any = torch_split

    def first(value: Tensor, output: Tensor, gradient: Tensor) -> Any:
        return api.stage_backward_input([output], [gradient], [value], stage.parameters())[1]

    return first, lambda rest: api.stage_backward_weight(stage.parameters(), rest)


class Clock:
    """Marks moments on the device, and tells the milliseconds between them afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if not self._is_cuda:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def between(self) -> list[float]:
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if not self._is_cuda:
            return [1000 * (end - begin) for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]


def turn(
    stage: nn.Module, halves: Halves, value: Tensor, gradient: Tensor, *, autocast: bool = False
) -> Turn:
    """One micro-batch from its forward to its last gradient."""
    value = value.clone().requires_grad_()
    is_cuda = value.device.type == "cuda"
    before = 0
    if is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    clock = Clock(value.device)
    clock.mark()
    with torch.autocast(value.device.type, torch.bfloat16, enabled=autocast):
        output = stage(value)
    clock.mark()
    rest = halves[0](value, output, gradient)
    # A worker lets go of a micro-batch's output when its backward has begun to run.
    del output
    clock.mark()
    halves[1](rest)
    clock.mark()
    peak = torch.cuda.max_memory_allocated() - before if is_cuda else 0
    forward, first, second = clock.between()
    return Turn(forward, first, second, peak)


def measure(case: Case, device: torch.device) -> list[list[Turn]]:
    """The turns of each way, in the order of NAMES."""
    original = case.stage.to(device=device, dtype=case.dtype)
    stages = [copy.deepcopy(original) for _ in NAMES]
    ways = [way(stage) for way, stage in zip((whole, ours, torchs), stages, strict=True)]
    value, gradient = (torch.randn(case.shape, device=device, dtype=case.dtype) for _ in range(2))
    turns: list[list[Turn]] = [[] for _ in NAMES]
    for number in range(case.turns + 3):
        for offset in range(len(NAMES)):
            which = (number + offset) % len(NAMES)
            way = (stages[which], ways[which])
            turns[which].append(turn(*way, value, gradient, autocast=case.autocast))
    return [each[3:] for each in turns]


def rows(case: Case, device: torch.device) -> list[tuple[str, ...]]:
    """One row of the table for each way."""
    measured = measure(case, device)
    return [
        (
            case.name,
            name,
            f"{statistics.median(each.forward for each in turns):.2f}",
            f"{statistics.median(each.first for each in turns):.2f}",
            f"{statistics.median(each.second for each in turns):.2f}",
            f"{share(turns, measured[0]):.3f}",
            f"{max(each.peak for each in turns) / 2**20:.0f}" if device.type == "cuda" else "-",
        )
        for name, turns in zip(NAMES, measured, strict=True)
    ]


def share(turns: Sequence[Turn], wholes: Sequence[Turn]) -> float:
    """Median over the rounds of both halves against the whole in the same round."""
    pairs = zip(turns, wholes, strict=True)
    return statistics.median((one.first + one.second) / (all_.first + all_.second) for one, all_ in pairs)


def cases(device: torch.device) -> list[Case]:
    """The cases that are measured on a device."""
    if device.type == "cuda":
        return [
            Case("4 blocks of 4096", blocks(4096, 4), (1, 2048, 4096), 30, torch.bfloat16),
            Case("4 Llama-like blocks of 2048", llama_blocks(4), (2, 2048, 2048), 30, autocast=True),
        ]
    return [
        Case("4 layers of 128", layers(128, 4), (4, 32, 128), 300),
        Case("4 layers of 512", layers(512, 4), (4, 32, 512), 60),
        Case("2 blocks of 128", blocks(128, 2), (4, 32, 128), 80),
        Case("2 blocks of 512", blocks(512, 2), (4, 32, 512), 20),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What it costs to split backward in two.")
    parser.add_argument("--device", default="cpu", help="cpu (one thread) or cuda")
    device = torch.device(parser.parse_args().device)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    table = [HEADER, *(row for case in cases(device) for row in rows(case, device))]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
