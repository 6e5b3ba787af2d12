"""Cost of slow data: `python -m bench.data` trains 2 x 2 workers; it takes 20 ms to draw a micro-batch.

The same items are given as an iterator, `batches(seed)`, and by index, `microbatch(index)`: without code of
the user between two steps, with it, and with the word that data does not depend on it.
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

from recycle_compiler.cli.main import main as recyclec
from recycle_runtime.launcher.local import RunOptions, run_local

_JOB = """\
job data {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }
  tolerate { failures = 1 }
}
"""
_PROGRAM = """\
import os, time, torch
from torch import nn

def layers():
    return [(str(layer), nn.Sequential(nn.Linear(384, 384), nn.Tanh())) for layer in range(4)]

def item(index):
    with open(os.path.join(os.environ["DRAWN"], str(os.getpid())), "a") as notes:
        notes.write(f"{index}\\n")
    time.sleep(float(os.environ["ITEM_SECONDS"]))
    points = torch.randn(256, 384, generator=torch.Generator().manual_seed(index))
    return points, points.sin()

def loss(output, target):
    return nn.functional.mse_loss(output, target)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""
_WAYS = {
    "batches(seed)": """
def batches(seed):
    index = 0
    while True:
        yield item(index)
        index += 1
""",
    "microbatch(index)": "\nmicrobatch = item\n",
    "and on_step": "\nmicrobatch = item\ndef on_step(report): ...\n",
    "and DRAW_AHEAD": "\nmicrobatch = item\nDRAW_AHEAD = True\ndef on_step(report): ...\n",
}
_WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--seconds", type=float, default=0.02, help="to draw an item")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "data.job").write_text(_JOB)
        recyclec(["--quiet", "compile", str(here / "data.job"), "-o", str(here / "data.plan")])
        os.environ["ITEM_SECONDS"] = str(arguments.seconds)
        needed = 2 * 8 * arguments.steps
        print(f"{'':18}  {'step':>8}  {'waiting for data':>16}  {'share':>6}  drawn; {needed} needed")
        for name, code in _WAYS.items():
            _measure(here, name, code, arguments.steps)


def _measure(folder: Path, name: str, code: str, steps: int) -> None:
    program, notes = folder / "program.py", folder / name
    program.write_text(_PROGRAM + code)
    notes.mkdir()
    os.environ["DRAWN"] = str(notes)
    result = run_local(RunOptions(str(folder / "data.plan"), str(program), steps))
    rows = result.steps[_WARM_UP:]
    drawn = sum(len(path.read_text().split()) for path in notes.iterdir())
    step, waited = median(row.seconds for row in rows), median(row.data_wait for row in rows)
    share = median(row.data_wait / row.seconds for row in rows)
    print(f"{name:18}  {1000 * step:5.0f} ms  {1000 * waited:13.1f} ms  {100 * share:4.1f} %  {drawn}")


if __name__ == "__main__":
    main()
