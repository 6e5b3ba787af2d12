"""A step on one GPU: the loop one would write, and plans of one stage and one pipeline, taking turns.

    python -m bench.gpu_step compile DIR     the plans; needs no GPU
    python -m bench.gpu_step run DIR         on a GPU: the table, to stdout and DIR/table.md
    python -m bench.gpu_step profile DIR     on a GPU: where the time of each goes, by torch.profiler

All contestants are in one process, have their own model, and compute the same steps from the same numbers; a
turn is a few steps of one while the others wait, and ratios are medians over rounds.
"""

import argparse
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from recycle_runtime.program.loading import Program

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {"llama": "bench/programs/llama.py", "gpt": "bench/programs/wide_gpt.py"}
MICROBATCHES = 8
WARM_UP, ROUNDS, STEPS = 4, 6, 4
JOB = """job step {{
  parallel {{ pipeline = 1  data = 1 }}
  batch    {{ microbatches = {microbatches} }}
  profile  {{ unit = ms  forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
  memory   {{ capacity = 2 }}
  techniques {{ {techniques} }}
  tolerate {{ failures = 0 }}
}}
"""
PLANS = {"1F1B": "", "decoupled + staggered": "decouple  stagger"}


class Contestant(Protocol):
    """Something that trains."""

    def step(self, number: int) -> float:
        """One step; its loss."""
        ...


def compile_plans(folder: Path) -> None:
    for number, techniques in enumerate(PLANS.values()):
        job, plan = folder / f"step-{number}.job", folder / f"step-{number}.plan"
        job.write_text(JOB.format(microbatches=MICROBATCHES, techniques=techniques))
        recyclec = Path(sys.executable).parent / "recyclec"
        subprocess.run([str(recyclec), "--quiet", "compile", str(job), "-o", str(plan)], check=True)


class PlainLoop:
    """The usual loop on one GPU: autocast, gradients added up, clipping, fused AdamW."""

    def __init__(self, path: str, device: str) -> None:
        import torch

        from recycle_runtime.execution.chunk import build_module
        from recycle_runtime.program.loading import load_program

        self._torch, self._device = torch, torch.device(device)
        self._program = load_program(path)
        self._model = build_module(self._program, 0, 1, 0).to(self._device)
        self._parameters = list(self._model.parameters())
        self._optimizer = self._program.optimizer(self._parameters)
        self._data: Iterator[tuple[torch.Tensor, torch.Tensor]] = self._program.batches(0)

    def step(self, number: int) -> float:
        torch = self._torch
        total = torch.zeros((), device=self._device)
        for _ in range(MICROBATCHES):
            value, target = (
                each.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else each
                for each in next(self._data)
            )
            with self._program.precision.computing(self._device):
                loss = self._program.loss(self._model(value), target) / MICROBATCHES
            torch.autograd.backward(loss)
            total += loss.detach()
        if self._program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self._program.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=False)
        return float(total)


class OfPlan:
    """A worker with everything that recovery needs, alone in its group."""

    def __init__(
        self,
        path: "str | Program",
        plan: Path,
        device: str,
        *,
        graphs: bool = False,
        undo_on_host: bool = False,
    ) -> None:
        import torch
        import torch.distributed as dist

        from recycle_runtime.execution.chunk import build_chunks
        from recycle_runtime.execution.session import Role, Session
        from recycle_runtime.plan.bundle import Bundle
        from recycle_runtime.program.loading import load_program
        from recycle_runtime.transport.choose import connect
        from recycle_runtime.transport.interface import Grid

        where = torch.device(device, 0) if device == "cuda" else torch.device(device)
        bundle = Bundle.read(plan)
        stream = bundle.stream(0, (0, 0))
        grid = Grid(bundle.workers(0), 1, 1, bundle.chunk_stages)
        store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        transport = connect(store, grid, (0, 0), 0, stream, where, timedelta(seconds=60))
        chunks = build_chunks(
            load_program(path) if isinstance(path, str) else path,
            bundle,
            0,
            0,
            where,
            graphs="on" if graphs else "off",
            undo="host" if undo_on_host else "device",
        )
        self._session = Session(Role(bundle, 0, (0, 0), stream, grid), chunks, transport, store, where)
        self._chunks = chunks

    @property
    def has_graphs(self) -> bool:
        """True if all its work is replayed."""
        return all(chunk.graphs for chunk in self._chunks.values())

    def step(self, number: int) -> float:
        loss = self._session.run(number).loss
        assert loss is not None
        return loss


def contestants(folder: Path, program: str, device: str) -> dict[str, Contestant]:
    path = str(ROOT / PROGRAMS[program])
    found: dict[str, Contestant] = {"plain loop": PlainLoop(path, device)}
    number, name = 0, ""
    for number, name in enumerate(PLANS):
        found[name] = OfPlan(path, folder / f"step-{number}.plan", device)
        found[f"{name}, CUDA graphs"] = OfPlan(path, folder / f"step-{number}.plan", device, graphs=True)
    found[f"{name}, CUDA graphs, undo on the host"] = OfPlan(
        path, folder / f"step-{number}.plan", device, graphs=True, undo_on_host=True
    )
    return found


def run(folder: Path, device: str) -> None:
    """The table of every program."""
    import torch

    lines: list[str] = []
    for program in PROGRAMS:
        racing = contestants(folder, program, device)
        seconds: dict[str, list[float]] = {name: [] for name in racing}
        losses: dict[str, list[float]] = {name: [] for name in racing}
        done = 0
        for number in range(ROUNDS + 1):
            count = STEPS if number else WARM_UP
            for name, each in racing.items():
                began = _now(device)
                losses[name] += [each.step(step) for step in range(done, done + count)]
                if number:
                    seconds[name].append((_now(device) - began) / count)
            done += count
        plain = seconds["plain loop"]
        for name in racing:
            ratio = median(own / other for own, other in zip(seconds[name], plain, strict=True))
            apart = max(abs(a - b) / abs(b) for a, b in zip(losses[name], losses["plain loop"], strict=True))
            row = (program, name, f"{1e3 * median(seconds[name]):.1f}", f"{ratio:.3f}", f"{apart:.1e}")
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
        racing.clear()
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    head = "| program | contestant | ms a step | of the plain loop | losses apart |"
    (folder / "table.md").write_text("\n".join([head, "|---|---|---:|---:|---:|", *lines, ""]))


def profile(folder: Path, device: str) -> None:
    """Activity of the host and the device in two steps of each."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    for program in PROGRAMS:
        for name, each in contestants(folder, program, device).items():
            for step in range(WARM_UP):
                each.step(step)
            with profiling(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
                for step in range(WARM_UP, WARM_UP + 2):
                    each.step(step)
            words = "-".join(name.replace("+", "").split())
            rows: Any = found.key_averages()
            tables = (rows.table(sort_by=f"self_{what}_time_total", row_limit=45) for what in ("cuda", "cpu"))
            (folder / f"{program}-{words}.txt").write_text("\n".join(tables))
        gc.collect()


def _now(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("compile", "run", "profile"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--programs", help="comma-separated; all by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for program in list(PROGRAMS) if arguments.programs else ():
        if program not in arguments.programs.split(","):
            del PROGRAMS[program]
    works: dict[str, Callable[[Path], None]] = {
        "compile": compile_plans,
        "run": lambda folder: run(folder, arguments.device),
        "profile": lambda folder: profile(folder, arguments.device),
    }
    works[arguments.what](arguments.folder)


if __name__ == "__main__":
    main()
