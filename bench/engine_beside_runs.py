"""Steps of real runs beside what the event engine predicts: `python -m bench.engine_beside_runs`.

On this machine: a small GPT in two stages, two processes with a core each, profiled as docs/runtime.md says
while the other core is busy too, then trained with a plan that was made from the profile. On a GPU: the plans
that `python -m bench.gpu_grid` has left in a folder, with the times it has written there or, if another
machine has run it, those in docs/runtime.md.
"""

import argparse
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.measure import RECYCLEC
from bench.models import gpt_text
from bench.report import ROOT, Section
from recycle_compiler.analysis.trace_diff.comparison import TraceComparison, compare_with_run
from recycle_compiler.analysis.trace_diff.trace_file import RunTrace, read_run_trace
from recycle_compiler.backends.bundle import read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.simulator.costs import SimulatedCosts, costs_of
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode

TITLE = "Runs and the event engine"
RECYCLE_RUN = RECYCLEC.with_name("recycle-run")
GRID = ROOT / ".device" / "grid"
WIDTH, STAGES = 256, 2
STEPS, WARM_UP = 40, 14
"""The first step is clipped, and the ten after that wait for the norm."""
TICKS_PER_MS = 1_000_000
JOB = """job two {{
  parallel {{ pipeline = {stages}  data = 1  tensor = 1 }}
  batch    {{ microbatches = 8 }}
  profile from "profile.json"
  techniques {{ {techniques} }}
  tolerate   {{ failures = 0 }}
}}
"""
TECHNIQUES = {"1F1B": "", "zero-bubble": "adaptive  decouple  stagger"}
GRID_PLANS = ("1F1B", "zero-bubble", "1:2 failed")
"""In the order of the numbers that bench/gpu_grid.py gives them."""
_OPCODES = {
    OpKind.F: Opcode.FORWARD,
    OpKind.B: Opcode.BACKWARD,
    OpKind.I: Opcode.BACKWARD_INPUT,
    OpKind.W: Opcode.BACKWARD_WEIGHT,
    OpKind.R: Opcode.REDUCE,
    OpKind.O: Opcode.OPTIMIZER,
}


class Beside(NamedTuple):
    """A run and its predictions, in milliseconds of a step."""

    where: str
    plan: str
    workers: int
    measured: float
    by_profile: float
    by_ops: float | None
    """With the times that the ops of the run itself took; None where it has left no trace."""
    load: float | None
    """Of this machine before the run: processes that wanted a core, on average over a minute."""


def section(grid: Path = GRID) -> Section:
    """One row for each run."""
    runs = [*on_this_machine(), *on_the_grid(grid)]
    return Section(
        title=TITLE,
        command="python -m bench.engine_beside_runs",
        words=(
            f"Milliseconds of a training step, the median of {STEPS - WARM_UP} on CPU, and what the event "
            "engine predicts from the profile that the plan was made with. The second prediction takes the "
            "median time of each kind of op on each stage of the run itself in place of the profile's. On "
            f"CPU: examples/programs/gpt.py at width {WIDTH}, two stages in two processes; load is what else "
            "wanted a core in the minute before. H200: 12 or 11 processes under MPS, as bench/gpu_grid.py "
            "runs them."
        ),
        columns=(
            "run", "plan", "workers", "measured ms", "from the profile", "off by", "from its ops", "off by",
            "load before",
        ),
        rows=tuple(map(_row, runs)),
    )  # fmt: skip


def on_this_machine() -> Iterator[Beside]:
    """Profile, plan, train with a trace, compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program.py"
        program.write_text(gpt_text(WIDTH), encoding="utf-8")
        busy = ["--busy-workers", str(STAGES - 1), "-o", folder / "profile.json", "--quiet"]
        _run(RECYCLE_RUN, "profile", "--program", program, "--stages", STAGES, *busy)
        for number, (plan, techniques) in enumerate(TECHNIQUES.items()):
            job, bundle, trace = (folder / f"{number}.{kind}" for kind in ("job", "plan", "json"))
            job.write_text(JOB.format(stages=STAGES, techniques=techniques), encoding="utf-8")
            _run(RECYCLEC, "--quiet", "compile", job, "-o", bundle)
            load = os.getloadavg()[0]
            options = [
                "--steps",
                STEPS,
                "--replan",
                "off",
                "--plan-ahead",
                "off",
                "--quiet",
                "--trace",
                trace,
            ]
            _run(RECYCLE_RUN, "local", bundle, "--program", program, *options)
            yield beside_trace(plan, Bundle.read(bundle), read_run_trace(str(trace)), load)


def beside_trace(plan: str, bundle: Bundle, trace: RunTrace, load: float) -> Beside:
    """The only plan of a bundle beside a trace of it; steps before WARM_UP do not count."""
    late = replace(trace, ops=tuple(op for op in trace.ops if op.step >= WARM_UP - 1))
    run = compare_with_run(replay(read_streams(bundle, 0)), late)
    return Beside(
        "CPU",
        plan,
        len(bundle.workers(0)),
        run.time / 1000,
        simulate(bundle, 0, iterations=1).period / TICKS_PER_MS,
        simulate(bundle, 0, iterations=1, costs=measured_costs(bundle, run)).period / TICKS_PER_MS,
        load,
    )


def measured_costs(bundle: Bundle, run: TraceComparison) -> SimulatedCosts:
    """The median of each kind of op on each stage; messages as planned."""
    ticks = {(_OPCODES[row.kind], row.stage): row.median / run.tick for row in run.op_times}
    return costs_of(read_job(bundle)).measured(ticks)


def on_the_grid(folder: Path) -> Iterator[Beside]:
    """The plans of a GPU's runs, and the table of what steps took, as far as there are any."""
    table = folder / "table.md"
    measured = measured_in((table if table.exists() else ROOT / "docs" / "runtime.md").read_text("utf-8"))
    for number, plan in enumerate(GRID_PLANS):
        path = folder / f"{number}.plan"
        if path.exists() and plan in measured:
            bundle = Bundle.read(path)
            predicted = simulate(bundle, 0, iterations=1).period / TICKS_PER_MS
            workers = len(bundle.workers(0))
            yield Beside("H200", plan, workers, measured[plan], predicted, None, None)


def measured_in(page: str) -> dict[str, float]:
    """Milliseconds by plan, from rows `| plan | workers | predicted ms | measured ms | ...`."""
    rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines())
    return {row[0]: float(row[3]) for row in rows if len(row) > 4 and row[0] in GRID_PLANS}


def _row(run: Beside) -> tuple[str, ...]:
    def prediction(value: float | None) -> tuple[str, str]:
        return ("", "") if value is None else (f"{value:.1f}", f"{100 * (value / run.measured - 1):+.1f} %")

    load = "" if run.load is None else f"{run.load:.1f}"
    first = (run.where, run.plan, str(run.workers), f"{run.measured:.1f}")
    return (*first, *prediction(run.by_profile), *prediction(run.by_ops), load)


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--grid", type=Path, default=GRID, help="the folder of bench.gpu_grid")
    print(section(parser.parse_args().grid).text())


if __name__ == "__main__":
    main()
