"""Trains through a failure: re-routed at once, cut anew soon after, and back when the worker returns.

python examples/recut.py PLAN

Prints how long steps took before the failure, re-routed, re-cut and after the return, and compares the losses
with those of an undisturbed run.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

STEPS, KILLED, BACK, WORKER = 70, 12, 36, "1:1"
PROGRAM = str(Path(__file__).resolve().parent / "programs" / "timed_layers.py")
RECYCLE_RUN = str(Path(sys.executable).parent / "recycle-run")
TOLERANCE = 1e-9


def train(plan: str, metrics: Path, *disturbances: str) -> list[dict[str, Any]]:
    """The rows of a run; whatever it says goes to the terminal."""
    command = [RECYCLE_RUN, "local", plan, "--program", PROGRAM, "--steps", str(STEPS), "--replan", "off"]
    subprocess.run([*command, "--metrics", str(metrics), *disturbances], check=True)
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    plan = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        print(f"== {STEPS} steps, nothing happens")
        calm = train(plan, Path(folder) / "calm.jsonl", "--quiet")
        print(f"== the same, but {WORKER} is killed in step {KILLED} and comes back in step {BACK}")
        events = ("--kill", f"{WORKER}@{KILLED}", "--rejoin", f"{WORKER}@{BACK}")
        rough = train(plan, Path(folder) / "rough.jsonl", *events)
    print("\nwhat happened")
    for row in rough:
        if row["event"]:
            print(f"  step {row['step']:3}  {row['event']}")
    print("\nplan          workers  steps  seconds a step")
    for name, rows in _phases(rough):
        # The first step after a change is warm-up.
        print(f"{name:12}  {rows[0]['live']:7}  {len(rows):5}  {median(_seconds(rows[1:] or rows)):14.3f}")
    pairs = [(one["loss"], other["loss"]) for one, other in zip(calm, rough, strict=True)]
    apart = max(abs(one - other) / one for one, other in pairs)
    verdict = "nothing was lost" if apart < TOLERANCE else "they should not"
    print(f"\nthe losses of both runs differ by at most {apart:.1e} of the loss: {verdict}")
    return 0 if apart < TOLERANCE else 1


def _seconds(rows: list[dict[str, Any]]) -> list[float]:
    return [row["seconds"] for row in rows]


def _phases(rows: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Steps under one plan, in order."""
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for row in rows:
        if not found or found[-1][0] != row["plan"]:
            found.append((row["plan"], []))
        found[-1][1].append(row)
    return found


if __name__ == "__main__":
    sys.exit(main())
