"""Memory of a worker on a GPU, beside DDP's and beside what its plan promises.

    python -m bench.gpu_step compile DIR       the plans; needs no GPU
    python -m bench.gpu_memory DIR             on a GPU: two tables, to stdout and DIR/memory.md

The first table has the bytes that are held between two steps, for each parameter. The second has what a step
holds beyond that: what the plan counts (micro-batches that a buffer holds, with the bytes that a profile has
measured), what is found to be held before any instruction, the peak, with what ops need while they run, and
what torch keeps reserved of the device for it: with CUDA graphs, their memory is reserved and not allocated.
"""

import argparse
import gc
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bench.gpu_step import PLANS, PROGRAMS, ROOT, PlainLoop
from recycle_runtime.execution.chunk import Chunk, Graphs, UndoMemory, build_chunks
from recycle_runtime.execution.session import Role, Session
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.profiler.measure import Options, profile
from recycle_runtime.program.loading import load_program
from recycle_runtime.transport.choose import connect
from recycle_runtime.transport.interface import Grid

STEPS = 14
"""Until nothing new is allocated: the first step is clipped, and ten after it wait for the norm."""
MIB = 1 << 20


class Rest(NamedTuple):
    """Bytes between two steps."""

    parameters: int
    """How many."""
    weights: int
    gradients: int
    optimizer: int
    undo: int
    lowered: int
    """Weights in the precision of the products."""
    allocated: int
    """Of the device, all in all."""


class Use(NamedTuple):
    """Bytes of a step, beyond those between two steps."""

    planned: int
    held: int
    """The most before any instruction."""
    peak: int
    reserved: int
    """After it."""


class Worker:
    """A plan of one worker, and what it has in memory."""

    def __init__(self, path: str, plan: Path, device: torch.device, graphs: Graphs, undo: UndoMemory) -> None:
        bundle = Bundle.read(plan)
        self.stream: Sequence[Instruction] = bundle.stream(0, (0, 0))
        grid = Grid(bundle.workers(0), 1, 1, bundle.chunk_stages)
        store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        transport = connect(store, grid, (0, 0), 0, self.stream, device, timedelta(seconds=60))
        self.before = _allocated()
        chunks = build_chunks(load_program(path), bundle, 0, 0, device, graphs=graphs, undo=undo)
        self._chunk: Chunk = chunks[0]
        self._held: list[int] = []
        role = Role(bundle, 0, (0, 0), self.stream, grid)
        self._session = Session(
            role, chunks, transport, store, device, before=lambda position: self._held.append(_allocated())
        )

    def rest(self) -> Rest:
        """After some steps."""
        for step in range(STEPS):
            self._session.run(step)
        stepper, module = self._chunk.stepper, self._chunk.module
        optimizers = [layer.optimizer for layer in self._chunk.layers if layer.optimizer is not None]
        kept = [value for each in optimizers for state in each.state.values() for value in state.values()]
        return Rest(
            sum(parameter.numel() for parameter in module.parameters()),
            _bytes([*module.parameters(), *module.buffers()]),
            stepper.gradients.bytes_held,
            _bytes([value for value in kept if isinstance(value, torch.Tensor)]),
            stepper.undo.bytes_held,
            self._chunk.split.bytes_held,
            _allocated() - self.before,
        )

    def use(self, saved: int, kept: int) -> Use:
        """Of one more step, in which a micro-batch holds `saved` bytes from F on and `kept` after I."""
        rest = _allocated()
        self._held.clear()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        self._session.run(STEPS)
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        reserved = torch.cuda.memory_reserved() if torch.cuda.is_available() else 0
        return Use(planned(self.stream, saved, kept), max(self._held) - rest, peak - rest, reserved - rest)


def planned(stream: Sequence[Instruction], saved: int, kept: int) -> int:
    """The most that the buffers of a stream hold at once."""
    now = most = 0
    for each in stream:
        if each.opcode is Opcode.FORWARD:
            now += saved
        elif each.opcode is Opcode.BACKWARD_INPUT:
            now += kept - saved
        elif each.opcode is Opcode.BACKWARD_WEIGHT:
            now -= kept
        elif each.opcode is Opcode.BACKWARD:
            now -= saved
        most = max(most, now)
    return most


def ddp(path: str, device: torch.device) -> tuple[int, int]:
    """Bytes that a rank of DDP holds between two steps, and how many parameters that is for."""
    store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
    before = _allocated()
    loop: Any = PlainLoop(path, str(device))
    wrapped: Any = torch.nn.parallel.DistributedDataParallel(loop._model)
    loop._model = wrapped
    for step in range(3):
        loop.step(step)
    found = _allocated() - before, sum(parameter.numel() for parameter in wrapped.parameters())
    dist.destroy_process_group()
    return found


def tables(folder: Path, program: str, device: torch.device) -> list[str]:
    """Both, line by line."""
    path = str(ROOT / PROGRAMS[program]) if program in PROGRAMS else program
    lines = [
        "| bytes a parameter | weights | gradients | optimizer | undo | in bf16 | allocated on the device |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    held, count = ddp(path, device)
    lines.append(f"| DDP, one rank | | | | | | {held / count:.1f} |")
    _clear()
    costs = profile(load_program(path), Options(stages=1, device=device.type, repeat=2)).stages[0]
    _clear()
    uses = ["", "| MiB of a step | planned | held | peak | reserved |", "|---|---:|---:|---:|---:|"]
    ways: list[tuple[Graphs, UndoMemory]] = [("off", "device"), ("off", "host"), ("on", "device")]
    for number, name in enumerate(PLANS):
        for graphs, undo in ways if device.type == "cuda" else ways[:2]:
            title = name + ", CUDA graphs" * (graphs == "on") + ", undo on the host" * (undo == "host")
            worker = Worker(path, folder / f"step-{number}.plan", device, graphs, undo)
            rest, use = worker.rest(), worker.use(costs.saved_bytes, costs.kept_bytes)
            parts = [f"{part / rest.parameters:.1f}" for part in rest[1:]]
            lines.append(f"| {title} | {' | '.join(parts)} |")
            uses.append(f"| {title} | {' | '.join(f'{part / MIB:,.0f}' for part in use)} |")
            print(lines[-1], uses[-1], sep="\n", flush=True)
            del worker
            _clear()
    return [*lines, *uses]


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _allocated() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _clear(collect: Callable[[], int] = gc.collect) -> None:
    collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--program", default="llama", help=f"{', '.join(PROGRAMS)}, or a file")
    arguments = parser.parse_args()
    lines = tables(arguments.folder, arguments.program, torch.device(arguments.device))
    print("\n".join(lines))
    (arguments.folder / "memory.md").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
