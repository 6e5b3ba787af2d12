"""Models of `transformers`, given whole: what trains as in a plain loop, and how exactly.

    python -m bench.model_matrix                             every family with every feature
    python -m bench.model_matrix --families Llama,Mixtral    some of them
    python -m bench.model_matrix --plans DIR                 plans lie there, or are put there
    BENCH_PARTS=DIR python -m bench.model_matrix             cells lie there, or are put there

Each cell is a run of 2 stages x 2 pipelines with a decoupled, staggered plan, over gloo; one worker is
killed in the middle of a step, and the run goes on until it has come back. Losses, parameters, buffers,
averages and a loss in evaluation mode are compared with those of a plain loop of as many steps in one
process, in float64 but for low precision (autocast over float32 weights).
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
import transformers

from bench.parts import Parts
from bench.programs.families import CONFIGS, FEATURES, LOW_PRECISION, MOST_STEPS, has

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "programs" / "families.py"
STEPS = 8
JOB = """job matrix {{
  parallel {{ pipeline = 2  data = 2{more} }}
  batch    {{ microbatches = 2 }}
  profile  {{ unit = ms  forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }}
  memory   {{ capacity = 3 }}
  tolerate {{ failures = 1 }}
}}
"""


SHAPES = {"plain": "", "tied": "  tied = ends", "tensor parallel": "  tensor = 2"}
"""By the feature that needs a plan of its own: what the job says more."""
_PARTS = Parts("model_matrix")


class Cell(NamedTuple):
    """Distance of a run from the plain loop, or its error."""

    losses: float
    state: float
    held_out: float
    words: str = ""

    def text(self, feature: str) -> str:
        """Of low precision losses alone: a step of Adam by a gradient that is rounding may go either way."""
        if self.words:
            return self.words
        found = (self.losses, self.held_out) if feature in LOW_PRECISION else self[:3]
        return f"{max(found):.0e}"


def compile_plans(folder: Path) -> dict[str, Path]:
    """For each of `SHAPES`."""
    plans: dict[str, Path] = {}
    folder.mkdir(parents=True, exist_ok=True)
    for shape, more in SHAPES.items():
        name = shape.replace(" ", "-")
        job, plan = folder / f"{name}.job", folder / f"{name}.plan"
        plans[shape] = plan
        if plan.exists():
            continue
        job.write_text(JOB.format(more=more))
        recyclec = Path(sys.executable).parent / "recyclec"
        subprocess.run([str(recyclec), "--quiet", "compile", str(job), "-o", str(plan)], check=True)
    return plans


def cell(folder: Path, plan: Path, family: str, feature: str) -> Cell:
    """One run, and the plain loop of as many steps."""
    here, alone = folder / f"{family}-{feature}", folder / f"{family}-{feature}-plain"
    for each in (here, alone):
        each.mkdir()
    arguments = [str(SCRIPT), family, feature, "--steps"]
    run = [sys.executable, "-m", "recycle_runtime.cli", "--quiet", "local", str(plan)]
    faults = ["--kill", "1:1@3", "--rejoin", "1:1@5"]
    done = subprocess.run(
        [*run, *faults, *arguments, str(STEPS), "-o", str(here)], capture_output=True, text=True
    )
    if done.returncode or not (here / "state.pt").exists():
        return Cell(0, 0, 0, f"no: {_last_line(done.stderr)}")
    steps = len(json.loads((here / "losses.json").read_text())["losses"])
    if steps == MOST_STEPS:
        return Cell(0, 0, 0, "no: the worker has not come back")
    plain = [sys.executable, *arguments, str(steps), "-o", str(alone), "--plain"]
    done = subprocess.run(plain, capture_output=True, text=True)
    if done.returncode:
        return Cell(0, 0, 0, f"plain loop: {_last_line(done.stderr)}")
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
            plan = plans[feature if feature in plans else "plain"]
            made = _PARTS.value(f"{family}-{feature}", lambda: cell(Path(folder), plan, family, feature))
            return Cell(*made).text(feature)

        with ThreadPoolExecutor(given.at_once) as pool:
            rows = [[pool.submit(text, family, feature) for feature in features] for family in families]
            for family, row in zip(families, rows, strict=True):
                print(f"| {family} | {' | '.join(each.result() for each in row)} |", flush=True)
    if _PARTS.origin:
        print(f"made {_PARTS.origin}, torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
