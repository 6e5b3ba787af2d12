"""What groups of pipelines could be worth at most: `python -m bench.groups [job[:failures,...] ...]`.

If up to three workers form a group with a cut and a share of the micro-batches of its own, gradients are
summed layer by layer across both. No plan is made: for every share near an even one, the bound over all
cuts of either group is computed, with sums as long as those of very many workers, and the slower one counts.
Plans (`recyclec plan --workers N --groups`) are a little better where sums have few holders.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.report import Section, job_path
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.layouts import Layouts

TITLE = "What groups of pipelines could be worth"
ROWS: dict[str, tuple[int, ...]] = {
    "megatron-18.4b": (0, 1, 2, 3),
    "megatron-18.4b-deep": (0, 1, 2),
    "megatron-39.1b": (0, 1, 3, 6),
    "gpt3-medium-32": (0, 1, 2, 4, 8),
    "gpt3-6.7b-32": (0, 4, 12),
    "gpt3-3.35b-32": (0, 4, 12),
}
_MOST = 3
"""Workers of the smaller group."""
_FAR = 1 << 62


class Row(NamedTuple):
    """Throughputs relative to fault-free 1F1B of the own cut."""

    job: str
    failures: int
    one_cut: float
    groups: float
    together: float
    """The same if all layers are reduced at one time, as they would have to be where stages wait for each
    other's sums."""


def rows(name: str, failures: Sequence[int]) -> Iterator[Row]:
    """The rows of one job."""
    job = load_job(str(job_path(name))).spec
    base = one_f_one_b_period(job)
    at_once = replace(job, techniques=replace(job.techniques, stagger=False))
    for count in failures:
        workers = job.workers - count
        one_cut = Layouts(job, workers).least_period(workers) or _FAR
        both = (_two_groups(each, workers) for each in (job, at_once))
        yield Row(name, count, base / one_cut, *(base / min(one_cut, period) for period in both))


def _two_groups(job: JobSpec, workers: int) -> int:
    units = job.pipelines * job.microbatches
    best = _FAR
    for few in range(1, min(_MOST, workers - 1) + 1):
        even = units * few // workers
        for share in range(max(1, even - 3 * few), even + 3):
            alone = _least(job, few, share)
            if alone < best:
                best = min(best, max(alone, _least(job, workers - few, units - share)))
    return best


def _least(job: JobSpec, workers: int, units: int) -> int:
    """Of any cut; reductions are as long as those of very many workers, since all groups take part."""
    costs = job.layer_costs
    assert costs is not None, "a job in layers"
    after = tuple(map(sum, zip(costs.optimizer, costs.reduce, strict=True)))
    layers = replace(costs, optimizer=after, reduce=(0,) * costs.count)
    # The other group holds every layer too.
    sized = replace(job, pipelines=1, microbatches=units, redundancy=1, layer_costs=layers)
    return Layouts(sized, workers).least_period(workers) or _FAR


def section(wanted: dict[str, tuple[int, ...]] | None = None) -> Section:
    """One row for each job and number of failures."""
    found = [row for name, failures in (wanted or ROWS).items() for row in rows(name, failures)]
    return Section(
        title=TITLE,
        command="python -m bench.groups",
        words=(
            "Throughput relative to fault-free 1F1B of the job's own cut by bounds: under one cut; if up to "
            "three workers had a cut and a share of their own; the same if all layers were reduced at one "
            "time. Groups reduce as if every layer had very many holders; with few they are a little faster."
        ),
        columns=("job", "failed", "one cut", "two groups", "reduced at one time"),
        rows=tuple(
            (
                row.job,
                str(row.failures),
                f"{row.one_cut:.3f}",
                f"{row.groups:.3f}",
                f"{row.together:.3f}",
            )
            for row in found
        ),
    )


def _wanted(arguments: Sequence[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for argument in arguments:
        name, _, counts = argument.partition(":")
        found[name] = tuple(map(int, counts.split(","))) if counts else ROWS[name]
    return found or ROWS


if __name__ == "__main__":
    print(section(_wanted(sys.argv[1:])).text())
