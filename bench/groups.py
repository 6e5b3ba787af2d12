"""Most that two groups of pipelines could be worth: `python -m bench.groups [job[:failures,...] ...]`.

No plan is made: these are the bounds over all cuts, and over all sizes, cuts and shares of two groups whose
gradients are summed layer by layer across both (`planner/group_bounds.py`).
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bench.report import Section, job_path
from recycle_compiler.frontend import load_job
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.group_bounds import TwoGroups
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
    groups, together = (TwoGroups(each, job.workers) for each in (job, at_once))
    for count in failures:
        workers = job.workers - count
        one_cut = Layouts(job, workers).least_period(workers) or _FAR
        both = (each.least_period(workers, 1, one_cut) for each in (groups, together))
        yield Row(name, count, base / one_cut, *(base / period for period in both))


def section(wanted: dict[str, tuple[int, ...]] | None = None) -> Section:
    """One row for each job and number of failures."""
    found = [row for name, failures in (wanted or ROWS).items() for row in rows(name, failures)]
    return Section(
        title=TITLE,
        command="python -m bench.groups",
        words=(
            "Throughput relative to fault-free 1F1B of the job's own cut by bounds: under one cut; under one "
            "cut or in two groups with cuts and shares of their own; the same if all layers were reduced at "
            "one time."
        ),
        columns=("job", "failed", "one cut", "or two groups", "reduced at one time"),
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
