"""Models of `transformers`, given whole: what trains as in a plain loop, and how exactly.

    python -m bench.model_matrix                             every family with every feature
    python -m bench.model_matrix --families Llama,Mixtral    some of them
    python -m bench.model_matrix --plans DIR                 plans lie there, or are put there

Each cell is a run of 2 stages x 2 pipelines with a decoupled, staggered plan, over gloo; one worker is
killed in the middle of a step and comes back. Losses, parameters, buffers and a loss in evaluation mode are
compared with those of a plain loop in one process, in float64 but for bf16 (autocast over float32 weights).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from bench.programs.families import CONFIGS, FEATURES, has

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "programs" / "families.py"
STEPS = 8
JOB = """job matrix {{
  parallel {{ pipeline = 2  data = 2{tied} }}
  batch    {{ microbatches = 2 }}
  profile  {{ unit = ms  forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
  memory   {{ capacity = 3 }}
  tolerate {{ failures = 1 }}
}}
"""


class Cell(NamedTuple):
    """How far a run is from the plain loop, or what it said."""

    losses: float
    state: float
    held_out: float
    words: str = ""

    def text(self, feature: str) -> str:
        """Of low precision losses alone: a step of Adam by a gradient that is rounding may go either way."""
        if self.words:
            return self.words
        found = (self.losses, self.held_out) if feature == "bf16" else self[:3]
        return f"{max(found):.0e}"


def compile_plans(folder: Path) -> dict[bool, Path]:
    """Without and with tied ends."""
    plans: dict[bool, Path] = {}
    for tied in (False, True):
        job, plan = folder / f"tied-{tied}.job", folder / f"tied-{tied}.plan"
        if plan.exists():
            plans[tied] = plan
            continue
        job.write_text(JOB.format(tied="  tied = ends" if tied else ""))
        recyclec = Path(sys.executable).parent / "recyclec"
        subprocess.run([str(recyclec), "--quiet", "compile", str(job), "-o", str(plan)], check=True)
        plans[tied] = plan
    return plans


def cell(folder: Path, plans: dict[bool, Path], family: str, feature: str) -> Cell:
    arguments = [str(SCRIPT), family, feature, "--steps", str(STEPS)]
    alone, here = folder / f"{family}-{feature}-plain", folder / f"{family}-{feature}"
    for each in (alone, here):
        each.mkdir()
    done = subprocess.run(
        [sys.executable, *arguments, "-o", str(alone), "--plain"], capture_output=True, text=True
    )
    if done.returncode:
        return Cell(0, 0, 0, f"plain loop: {_last_line(done.stderr)}")
    plan = str(plans[feature == "tied"])
    run = [sys.executable, "-m", "recycle_runtime.cli", "--quiet", "local", plan]
    faults = ["--kill", "1:1@3", "--rejoin", "1:1@5"]
    done = subprocess.run([*run, *faults, *arguments, "-o", str(here)], capture_output=True, text=True)
    if done.returncode or not (here / "state.pt").exists():
        return Cell(0, 0, 0, f"no: {_last_line(done.stderr)}")
    return compared(alone, here)


def compared(alone: Path, here: Path) -> Cell:
    expected, found = (json.loads((each / "losses.json").read_text()) for each in (alone, here))
    states = [torch.load(each / "state.pt", weights_only=True) for each in (alone, here)]
    if missing := states[0].keys() ^ states[1].keys():
        return Cell(0, 0, 0, f"no: {sorted(missing)[0]} is in one state only")
    losses = max(abs(a - b) / abs(a) for a, b in zip(expected["losses"], found["losses"], strict=True))
    state = max(_apart(states[0][name], states[1][name]) for name in states[0])
    held_out = abs(expected["held_out"] - found["held_out"]) / abs(expected["held_out"])
    return Cell(losses, state, held_out)


def _apart(expected: torch.Tensor, found: torch.Tensor) -> float:
    # The bias of a key is nothing but rounding.
    scale = max(float(expected.double().abs().max()), 1e-6)
    return float((expected.double() - found.double()).abs().max()) / scale


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines() or [""]
    return lines[-1].strip()[:200]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--families", help="comma-separated; all by default")
    parser.add_argument("--features", help="comma-separated; all by default")
    parser.add_argument("--plans", type=Path, help="where plans are, or are put")
    parser.add_argument("--at-once", type=int, default=1, help="cells that run at the same time")
    parser.add_argument("--only-plans", action="store_true")
    given = parser.parse_args()
    families = given.families.split(",") if given.families else list(CONFIGS)
    features = given.features.split(",") if given.features else list(FEATURES)
    print(f"| family | {' | '.join(features)} |")
    print(f"|---|{'---|' * len(features)}")
    with tempfile.TemporaryDirectory() as folder:
        plans = compile_plans(given.plans or Path(folder))
        if given.only_plans:
            return

        def text(family: str, feature: str) -> str:
            if not has(family, feature):
                return ""
            return cell(Path(folder), plans, family, feature).text(feature)

        with ThreadPoolExecutor(given.at_once) as pool:
            rows = [[pool.submit(text, family, feature) for feature in features] for family in families]
            for family, row in zip(families, rows, strict=True):
                print(f"| {family} | {' | '.join(each.result() for each in row)} |", flush=True)


if __name__ == "__main__":
    main()
