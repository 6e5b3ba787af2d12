"""The running example's grid on one GPU: 12 worker processes under MPS, measured against what plans predict.

    python -m bench.gpu_grid all DIR         where a GPU and the compiler are both there
    python -m bench.gpu_grid measure DIR     profile with all workers busy, and losses of one process
    python -m bench.gpu_grid compile DIR     plans from that profile; needs no GPU
    python -m bench.gpu_grid run DIR         trains with every plan and prints the table

A plan predicts its period from op times; a step takes what two rows of a run are apart, and the first few
are left out.
"""

import argparse
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "bench" / "programs" / "wide_gpt.py")
STAGES, PIPELINES, MICROBATCHES = 4, 3, 6
WORKERS = STAGES * PIPELINES
BESIDE = (7, 8, 9, 10)
"""Others that are busy while one is profiled: slices of a GPU are not quite independent, and of 11 others as
many are busy at any moment as the plan lets them be."""
HELD = 4
"""Activations that a worker has memory for: what the first stage of 1F1B takes."""
STEPS, LEFT_OUT = 24, 6
CHECKED_STEPS = 4

JOB = """job grid {{
  parallel {{ pipeline = {stages}  data = {pipelines}  tensor = 1 }}
  batch    {{ microbatches = {microbatches} }}
  profile from "{profile}"
  memory     {{ capacity = {capacity} }}
  techniques {{ {techniques} }}
  tolerate   {{ failures = 0 }}
}}
"""
PLANS = {
    "1F1B": ("", ""),
    "zero-bubble": ("adaptive  decouple  stagger", ""),
    "1:2 failed": ("adaptive  decouple  stagger", "1:2"),
}


def measure(folder: Path) -> None:
    """Profiles of one worker's slice while others are busy, and the losses of one process."""
    from bench.mps import mps

    with mps(WORKERS):
        command = ["profile", "--program", PROGRAM, "--stages", str(STAGES), "--pipelines", str(PIPELINES)]
        for beside in BESIDE:
            options = ["--device", "cuda", "--busy-workers", str(beside)]
            _runtime(*command, *options, "-o", str(folder / f"profile-{beside}.json"))
    (folder / "alone.json").write_text(json.dumps(_losses_of_one_process()))


def compile_plans(folder: Path) -> None:
    """One bundle for every plan, and what it predicts."""
    predicted: dict[str, float] = {}
    for number, (name, (techniques, failed)) in enumerate(PLANS.items()):
        beside = BESIDE[1]
        found = _compiled(folder, number, techniques, failed, beside)
        wanted = _busy_beside_one(found)
        nearest = min(BESIDE, key=lambda known: abs(known - wanted))
        if nearest != beside:
            found = _compiled(folder, number, techniques, failed, nearest)
        print(f"{name}: {wanted:.1f} others busy beside a busy worker, profile with {nearest}")
        predicted[name] = float(found["period"])
    (folder / "predicted.json").write_text(json.dumps(predicted))


def job_text(folder: Path, beside: int, techniques: str) -> str:
    """The job with the profile that was taken beside so many."""
    profile: dict[str, Any] = json.loads((folder / f"profile-{beside}.json").read_text())
    most = max(stage["activation_bytes"] for stage in profile["stages"])
    return JOB.format(
        stages=STAGES,
        pipelines=PIPELINES,
        microbatches=MICROBATCHES,
        capacity=f"{-(-HELD * most // 1024)} KiB",
        techniques=techniques,
        profile=f"profile-{beside}.json",
    )


def _compiled(folder: Path, number: int, techniques: str, failed: str, beside: int) -> dict[str, Any]:
    """A plan as `recyclec show` tells it."""
    job, plan = folder / f"{number}.job", folder / f"{number}.plan"
    job.write_text(job_text(folder, beside, techniques))
    words = ["plan", str(job), "--failed", failed] if failed else ["compile", str(job)]
    recyclec = Path(sys.executable).parent / "recyclec"
    subprocess.run([str(recyclec), "--quiet", *words, "-o", str(plan)], check=True)
    shown = subprocess.run(
        [str(recyclec), "show", str(plan), "--format", "json"], check=True, capture_output=True
    )
    found: dict[str, Any] = json.loads(shown.stdout)
    assert found["unit"] == "ms", found["unit"]
    return found


def _busy_beside_one(plan: dict[str, Any]) -> float:
    """Number of other workers that compute, on average, while one does."""
    ops: list[dict[str, Any]] = plan["ops"]
    moments = sorted({op[end] for op in ops for end in ("start", "end")})
    weighted = total = 0.0
    for begin, end in pairwise(moments):
        busy = sum(op["start"] <= begin and op["end"] >= end for op in ops)
        weighted += busy * (busy - 1) * (end - begin)
        total += busy * (end - begin)
    return weighted / total


def run(folder: Path) -> None:
    """Train with every plan; the table goes to stdout and to a file."""
    from bench.mps import mps
    from recycle_runtime.launcher.local import RunOptions, run_local
    from recycle_runtime.protocol.messages.observers import ToObserver
    from recycle_runtime.protocol.messages.steps import StepRow

    predicted: dict[str, float] = json.loads((folder / "predicted.json").read_text())
    alone: list[float] = json.loads((folder / "alone.json").read_text())
    rows: list[tuple[str, ...]] = []
    with mps(WORKERS):
        for number, (name, (_, failed)) in enumerate(PLANS.items()):
            ends: list[float] = []

            def take(message: ToObserver, ends: list[float] = ends) -> None:
                if isinstance(message, StepRow):
                    ends.append(time.perf_counter())

            gone = ((1, 2),) if failed else ()
            plan = str(folder / f"{number}.plan")
            result = run_local(
                RunOptions(plan, PROGRAM, STEPS, gone, device="cuda", heartbeat_timeout=20.0), take
            )
            apart = [1000 * (later - one) for one, later in pairwise(ends)][LEFT_OUT:]
            off = max(
                abs(step.loss_or_nan - one) / one
                for step, one in zip(result.steps[: len(alone)], alone, strict=True)
            )
            step = mean(apart)
            rows.append(
                (
                    name,
                    str(WORKERS - len(gone)),
                    f"{predicted[name]:.1f}",
                    f"{step:.1f}",
                    f"{min(apart):.1f}-{max(apart):.1f}",
                    f"{step / predicted[name]:.3f}",
                    f"{off:.1e}",
                )
            )
            print("  ".join(rows[-1]), flush=True)
    head = ("plan", "workers", "predicted ms", "measured ms", "from-to", "ratio", "loss against one process")
    table = "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))
    print(table)
    (folder / "table.md").write_text(table + "\n")


def _losses_of_one_process() -> list[float]:
    """A plain loop over all micro-batches, every stage after the other, on the whole GPU."""
    import torch

    from recycle_runtime.data.microbatches import MicroBatches
    from recycle_runtime.execution.chunk import build_module
    from recycle_runtime.program.loading import load_program

    program, device = load_program(PROGRAM), torch.device("cuda")
    modules = [build_module(program, stage, STAGES, 0).to(device) for stage in range(STAGES)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = program.optimizer(parameters)
    per_step = PIPELINES * MICROBATCHES
    data = MicroBatches(program, 0, per_step)
    losses: list[float] = []
    for step in range(CHECKED_STEPS):
        optimizer.zero_grad()
        total = 0.0
        for index in range(per_step):
            value, target = data.item(step, index)
            value = value.to(device)
            for module in modules:
                value = module(value)
            loss = program.loss(value, target.to(device)) / per_step
            torch.autograd.backward(loss)
            total += float(loss)
        if program.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, program.clip_norm)
        optimizer.step()
        losses.append(total)
    return losses


def _runtime(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "recycle_runtime.cli", *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("all", "measure", "compile", "run"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, work in (("measure", measure), ("compile", compile_plans), ("run", run)):
        if arguments.what in (name, "all"):
            work(arguments.folder)


if __name__ == "__main__":
    main()
