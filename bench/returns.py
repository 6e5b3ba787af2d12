"""Returns of ours to a checkpoint over recorded faults: `python -m bench.returns PLAN TRACE [--seeds N]`.

The trace is one of fault records, from which machines are drawn by seed, with several numbers of spare ones.
Each return is printed with the policy's own words and what it cost. At the end: how many there were, and how
often the machines of a draw failed at one moment or within a minute of each other.
"""

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from recycle_compiler.fleet.comparison import Comparison, batch_of, compare_policies
from recycle_compiler.fleet.machines import Fleet, lay_out
from recycle_compiler.fleet.our_plans import plans_of, recuts_of
from recycle_compiler.fleet.setting import make_setting, read_said
from recycle_compiler.fleet.traces.read import read_trace
from recycle_compiler.fleet.traces.trace import Draw, JobGrid
from recycle_compiler.ir.bundled import read_job
from recycle_runtime.plan.bundle import Bundle

SPARES = (0, 1, 2, 4, 8)
_TOGETHER = 60.0
"""Seconds."""


def comparisons(bundle: Bundle, trace: str, seed: int) -> Iterator[tuple[int, Comparison]]:
    """One draw with each number of spare machines."""
    job, said = read_job(bundle), read_said(bundle.job_source)
    setting = make_setting(job, plans_of(bundle), None, recuts_of(bundle))
    layout = lay_out(job.pipelines, job.stages, job.tensor, None, "pipeline")
    for spares in SPARES:
        draw = Draw(len(layout.places) + spares, None, ())
        fleet = Fleet(read_trace(trace, JobGrid(job.pipelines, job.stages, draw), seed), layout)
        yield spares, Comparison(setting, fleet, batch_of(setting, said.samples))


def close_failures(fleet: Fleet) -> int:
    """Changes in which workers fail at one moment, or within a minute of the change before."""
    moments = [(change.at, len(change.failed)) for change in fleet.changes() if change.failed]
    several = sum(count > 1 for _, count in moments)
    return several + sum(after - before <= _TOGETHER for (before, _), (after, _) in pairwise(moments))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("trace")
    parser.add_argument("--seeds", type=int, default=30)
    arguments = parser.parse_args()
    bundle = Bundle.read(arguments.plan)
    runs = returns = 0
    lost = close = 0.0
    for seed in range(arguments.seeds):
        for spares, comparison in comparisons(bundle, arguments.trace, seed):
            runs += 1
            close += close_failures(comparison.fleet)
            (ours,) = compare_policies(comparison, ("ours",)).outcomes
            for entry in ours.checkpoints_read:
                returns += 1
                lost += entry.gpu_hours(comparison.gpus)
                print(
                    f"seed {seed}, {spares} spares, after {entry.hours:.4f} h: {entry.why}; "
                    f"{entry.gpu_hours(comparison.gpus):.1f} GPU-hours",
                    flush=True,
                )
    print(f"{runs} runs, {returns} returns, {lost:.1f} GPU-hours; {close:.0f} failures close to others")


if __name__ == "__main__":
    main()
