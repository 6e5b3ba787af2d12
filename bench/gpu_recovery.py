"""A worker fails and returns, with 12 CUDA workers on one GPU: `python -m bench.gpu_recovery DIR`.

DIR is that of `bench.gpu_grid`, with its profile; a plan with one failure is made from it unless it is there.
The first run kills a worker and starts it again, the second stops one, so that it hangs. Step times are what
rows are apart, beside what the plans predict. With `--series` there are three other runs instead: six workers
fail in different ways and return, and nothing happens, twice; their losses are compared.
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

from bench.gpu_grid import BESIDE, PROGRAM, WORKERS, job_text

STEPS, FAULT, BACK = 72, 14, 26
NAMES = ("before", "one worker less", "after")
SERIES_STEPS = 90
SERIES = (
    "kill=2:3@4.34", "stop=2:0@4.25", "term=0:2@17.33", "exception=1:1@17.0", "exit=2:2@34.2", "kill=1:2@60",
)  # fmt: skip
SERIES_BACK = ("2:3@20", "2:0@24", "0:2@30", "1:1@40", "2:2@50", "1:2@70")
SERIES_FAILURES = 6


def compile_plan(folder: Path) -> None:
    """Plans for no failure and for one, on the stage where it costs least."""
    (folder / "recovery.job").write_text(job_text(folder, BESIDE[1], "adaptive  decouple  stagger"))
    command = [str(Path(sys.executable).parent / "recyclec"), "compile", "--json", "--failures", "1"]
    words = [*command, str(folder / "recovery.job"), "-o", str(folder / "recovery.plan")]
    made = subprocess.run(words, check=True, capture_output=True)
    (folder / "recovery.json").write_bytes(made.stdout)


def run(folder: Path) -> None:
    """Both runs, and a table of each."""
    from bench.mps import mps

    plans: list[dict[str, Any]] = json.loads((folder / "recovery.json").read_text())["plans"]
    stage = next(number for number, failed in enumerate(plans[1]["failed_per_stage"]) if failed)
    periods = [float(plan["period"]) for plan in plans]
    with mps(WORKERS):
        for kind in ("kill", "stop"):
            _one_run(folder, kind, f"2:{stage}", periods)


def compile_series(folder: Path) -> None:
    """More failures, since plans on demand need the compiler, which a GPU's machine may not have."""
    command = [str(Path(sys.executable).parent / "recyclec"), "--quiet", "compile"]
    words = [*command, "--failures", str(SERIES_FAILURES), str(folder / "recovery.job")]
    subprocess.run([*words, "-o", str(folder / "series.plan")], check=True)


def run_series(folder: Path) -> None:
    """Every step is made once; how far losses lie apart, disturbed and not."""
    from bench.mps import mps

    with mps(WORKERS):
        quiet = _losses(folder)
        again, disturbed = _losses(folder), _losses(folder, SERIES, SERIES_BACK)
    for name, other in (("two undisturbed runs", again), ("undisturbed and disturbed", disturbed)):
        print(
            f"{name}: losses at most {max(abs(a - b) for a, b in zip(quiet, other, strict=True)):.1e} apart"
        )


def _losses(folder: Path, faults: tuple[str, ...] = (), returns: tuple[str, ...] = ()) -> list[float]:
    from recycle_runtime.launcher.local import RunOptions, run_local

    plan = str(folder / "series.plan")
    options = RunOptions(plan, PROGRAM, SERIES_STEPS, device="cuda", faults=faults, returns=returns)
    steps = run_local(options, lambda message: None).steps
    assert [step.step for step in steps] == list(range(SERIES_STEPS)), "steps were skipped or counted twice"
    return [step.loss_or_nan for step in steps]


def _one_run(folder: Path, kind: str, place: str, periods: list[float]) -> None:
    from recycle_runtime.launcher.live_view import event_of
    from recycle_runtime.launcher.local import RunOptions, run_local
    from recycle_runtime.protocol.messages.observers import ToObserver
    from recycle_runtime.protocol.messages.steps import StepRow

    ends: dict[int, float] = {}

    def take(message: ToObserver) -> None:
        if isinstance(message, StepRow):
            ends[message.step] = time.perf_counter()
        elif (words := event_of(message)) is not None:
            print(f"    {words}", flush=True)

    options = RunOptions(
        str(folder / "recovery.plan"), PROGRAM, STEPS, device="cuda",
        faults=(f"{kind}={place}@{FAULT}",), returns=(f"{place}@{BACK}",),
    )  # fmt: skip
    result = run_local(options, take)
    assert [step.step for step in result.steps] == list(range(STEPS)), "steps were skipped or counted twice"
    changed = [row.step for row in result.recoveries if row.causes != ("start",)]
    spans = [(4, FAULT), (FAULT + 2, BACK), (changed[-1] + 3, STEPS)]
    print(f"{kind} of {place} in step {FAULT}, started again in step {BACK}")
    for name, span, period in zip(NAMES, spans, (periods[0], periods[1], periods[0]), strict=True):
        apart = [later - one for one, later in pairwise(ends[step] for step in range(*span))]
        print(f"  {name:16} {1000 * mean(apart):6.1f} ms a step, predicted {period:6.1f}")
    for row in result.recoveries:
        if row.causes != ("start",):
            times = f"detection {row.detection:.3f} s, regroup {row.regroup:.3f} s, total {row.total:.3f} s"
            print(f"  step {row.step}: {times}, run again {row.repeated:.3f} s")
    slowest = max((ends[step + 1] - ends[step], step + 1) for step in range(BACK, STEPS - 1))
    print(f"  longest time between two rows after the return: {slowest[0]:.3f} s, at step {slowest[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile", action="store_true", help="make the plan and stop")
    parser.add_argument("--series", action="store_true", help="many failures and returns instead")
    arguments = parser.parse_args()
    if arguments.compile or not (arguments.folder / "recovery.plan").exists():
        compile_plan(arguments.folder)
    if arguments.series and (arguments.compile or not (arguments.folder / "series.plan").exists()):
        compile_series(arguments.folder)
    if not arguments.compile:
        (run_series if arguments.series else run)(arguments.folder)


if __name__ == "__main__":
    main()
