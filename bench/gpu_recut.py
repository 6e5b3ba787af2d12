"""A failure that is re-routed and then cut anew, with six CUDA workers on one GPU under MPS.

    python -m bench.gpu_recut measure DIR     profile by layer with other workers busy
    python -m bench.gpu_recut compile DIR     plans from that profile, other cuts among them; needs no GPU
    python -m bench.gpu_recut run DIR         trains through a kill and a return, prints step times and pauses

Steps are what rows of a run are apart, beside what the plans predict; the first two of a plan are left out.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "bench" / "programs" / "wide_gpt.py")
STAGES, PIPELINES, MICROBATCHES = 2, 3, 6
WORKERS = STAGES * PIPELINES
SLICES = 12
"""Of the GPU, one for each worker. With six (16 % of the multiprocessors each) torch 2.11 computes NaN for
this program even in a plain loop of one process; with twelve, or with the whole GPU, it does not."""
BESIDE = 4
"""Others that are busy while a layer is profiled, as in `bench.gpu_grid`."""
STEPS, FAULT, BACK = 120, 20, 70
LEFT_OUT = 2

JOB = """job recut {{
  parallel {{ pipeline = {stages}  data = {pipelines} }}
  batch    {{ microbatches = {microbatches} }}
  profile from "profile.json"
  tolerate {{ failures = 2 }}
}}
"""


def measure(folder: Path) -> None:
    from bench.mps import mps

    command = [sys.executable, "-m", "recycle_runtime.cli", "profile", "--program", PROGRAM, "--layers"]
    options = ["--pipelines", str(PIPELINES), "--device", "cuda", "--busy-workers", str(BESIDE)]
    with mps(SLICES):
        subprocess.run([*command, *options, "-o", str(folder / "profile.json")], check=True)


def compile_plans(folder: Path) -> None:
    job = folder / "recut.job"
    job.write_text(JOB.format(stages=STAGES, pipelines=PIPELINES, microbatches=MICROBATCHES))
    recyclec = str(Path(sys.executable).parent / "recyclec")
    words = [recyclec, "compile", "--json", str(job), "-o", str(folder / "recut.plan")]
    (folder / "recut.json").write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)


def run(folder: Path) -> None:
    from bench.mps import mps

    plans: list[dict[str, Any]] = json.loads((folder / "recut.json").read_text())["plans"]
    for plan in plans:
        print(
            f"planned, {plan['failures']} failed: own cut {plan['own_period']} ms, {plan['period']} ms as",
            end=" ",
        )
        print(" ".join(f"{a}x{b}" for a, b in zip(plan["cut"], plan["hosts"], strict=True)))
    with mps(SLICES):
        quiet, _ = _run(folder, (), ())
        losses, ends = _run(folder, (f"kill=1:1@{FAULT}",), (f"1:1@{BACK}",))
    # The loss of a step in which a worker died may be unknown.
    pairs = [(one, other) for one, other in zip(quiet, losses, strict=True) if not math.isnan(other)]
    apart = max(abs(one - other) for one, other in pairs)
    print(f"losses of the two runs are at most {apart:.1e} apart")
    for name, times in ends:
        steps = [later - one for one, later in pairwise(times)][LEFT_OUT:]
        if steps:
            print(f"  plan {name:14} {len(times):3} steps, {1000 * median(steps):6.1f} ms a step")


def _run(
    folder: Path, faults: tuple[str, ...], returns: tuple[str, ...]
) -> tuple[list[float], list[tuple[str, list[float]]]]:
    from recycle_runtime.launcher.live_view import event_of
    from recycle_runtime.launcher.local import RunOptions, run_local
    from recycle_runtime.protocol.messages.observers import ToObserver
    from recycle_runtime.protocol.messages.steps import StepRow

    ends: list[tuple[str, list[float]]] = []

    def take(message: ToObserver) -> None:
        if isinstance(message, StepRow):
            if not ends or ends[-1][0] != message.plan:
                ends.append((message.plan, []))
            ends[-1][1].append(time.perf_counter())
        elif faults and (words := event_of(message)) is not None:
            print(f"    {words}", flush=True)

    plan = str(folder / "recut.plan")
    options = RunOptions(plan, PROGRAM, STEPS, device="cuda", faults=faults, returns=returns)
    result = run_local(options, take)
    assert [step.step for step in result.steps] == list(range(STEPS)), "steps were skipped or counted twice"
    for row in result.recoveries:
        if faults and row.causes != ("start",):
            print(f"  step {row.step}: {', '.join(row.causes)}: pause {row.total:.3f} s")
    return [step.loss_or_nan for step in result.steps], ends


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("measure", "compile", "run"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    {"measure": measure, "compile": compile_plans, "run": run}[arguments.what](arguments.folder)


if __name__ == "__main__":
    main()
