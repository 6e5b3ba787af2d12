"""Trains a small GPT twice, once undisturbed and once while a worker is killed and comes back, and compares.

python examples/survive.py PLAN
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, KILLED, BACK, WORKER = 24, 8, 14, "1:2"
PROGRAM = str(Path(__file__).resolve().parent / "programs" / "gpt.py")
RECYCLE_RUN = str(Path(sys.executable).parent / "recycle-run")
TOLERANCE = 1e-4
"""Of losses in float32: sums are made in another order when other workers make them."""


def train(plan: str, metrics: Path, *disturbances: str) -> list[dict[str, Any]]:
    """The rows of a run; whatever it says goes to the terminal."""
    command = [RECYCLE_RUN, "local", plan, "--program", PROGRAM, "--steps", str(STEPS)]
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
    print("\nstep  undisturbed  disturbed  workers")
    for one, other in zip(calm, rough, strict=True):
        event = f"   {other['event']}" if other["event"] else ""
        print(f"{one['step']:4}  {one['loss']:11.6f}  {other['loss']:9.6f}  {other['live']:7}{event}")
    pairs = [(one["loss"], other["loss"]) for one, other in zip(calm, rough, strict=True)]
    apart = max(abs(one - other) / one for one, other in pairs)
    verdict = "nothing was lost" if apart < TOLERANCE else "they should not"
    print(f"\nthe loss fell from {pairs[0][1]:.4f} to {pairs[-1][1]:.4f} in both runs")
    print(f"the two curves differ by at most {apart:.1e} of the loss: {verdict}")
    return 0 if apart < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
