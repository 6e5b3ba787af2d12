"""Worth of choosing the cut: `python -m bench.cuts [job[:failures,...] ...]`.

For each job in layers and some numbers of failures: the plan under the job's own cut, the plan under the best
cut and counts found, or of two groups of pipelines with cuts of their own, Oobleck's model with pipelines of
any depth, and the bound over all cuts and all two groups, as throughput relative to fault-free 1F1B of the
own cut.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.fleet_settings import OurPlans, made_for, our_plan, setting_of, shuffled_workers
from bench.parts import Parts
from bench.report import Section, job_path, percent
from recycle_compiler.fleet.policy import CannotRunError, make_policy
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.frontend import load_job
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.viz.table import layout_cell

TITLE = "Choosing the cut"
ROWS: dict[str, tuple[int, ...]] = {
    "megatron-145.6b-deep": (0, 2, 10, 19),
    "megatron-145.6b": (0, 2, 10, 19),
    "megatron-76.1b": (0, 1, 6, 13),
    "megatron-76.1b-deep": (0, 1, 6, 13),
    "megatron-39.1b": (0, 1, 3, 6),
    "megatron-39.1b-deep": (0, 1, 3, 6),
    "megatron-18.4b-deep": (0, 1, 2, 3),
    "megatron-18.4b": (0, 1, 2, 3),
    "gpt3-6.7b-32": (0, 1, 4, 8, 12),
    "gpt3-3.35b-32": (0, 1, 4, 8, 12),
    "gpt3-medium-32": (0, 1, 2, 4, 8),
    "gpt3-3.35b-24-layers": (0, 2, 5, 8),
    "gpt3-3.35b-24-halves": (0, 1, 4),
}
"""Jobs, and the numbers of failures that are looked at."""
_PARTS = Parts("cuts")


class Row(NamedTuple):
    """Throughputs relative to fault-free 1F1B of the own cut."""

    job: str
    failures: int
    own: float
    oobleck: float | None
    chosen: float
    bound: float
    layout: str


def rows(name: str, failures: Sequence[int]) -> Iterator[Row]:
    """The rows of one job."""
    job = load_job(str(job_path(name))).spec
    base = one_f_one_b_period(job)
    own, found = made_for(name, tuple(failures))
    assert found is not None, "a job in layers"
    setting = setting_of(name, OurPlans(tuple(map(our_plan, own.values()))))
    for count in failures:
        period = own[count].claims.period
        best = found.best(job.workers - count, period)
        yield Row(
            name,
            count,
            base / period,
            _oobleck(setting, count),
            base / (period if best is None else best.claims.period),
            base / found.bounds[count],
            "own cut" if best is None else layout_cell(best.layout, job.cut) + _halves(best.split),
        )


def _halves(split: int) -> str:
    return ", in halves" if split == 2 else ""


def _oobleck(setting: FleetSetting, failed: int) -> float | None:
    down = frozenset(shuffled_workers(setting.job)[:failed])
    try:
        return make_policy("oobleck", setting).begin(down, 0) / setting.rate(setting.one_f_one_b)
    except CannotRunError:
        return None


def _kept_rows(name: str, failures: tuple[int, ...]) -> list[Row]:
    """The rows of one job, which may have been made before."""
    part = "-".join((name, *map(str, failures)))
    return [Row(*row) for row in _PARTS.value(part, lambda: list(rows(name, failures)))]


def section(wanted: dict[str, tuple[int, ...]] | None = None) -> Section:
    """One row for each job and number of failures."""
    wanted = wanted or ROWS
    found = [row for name, failures in wanted.items() for row in _kept_rows(name, failures)]
    return Section(
        title=TITLE,
        command="python -m bench.cuts",
        words=(
            "Throughput relative to fault-free 1F1B of the job's own cut, once layers have moved. The plan "
            "under the own cut; Oobleck's model with pipelines of any depth; the plan under the cut and the "
            "numbers of workers that the compiler chose, every layer on two workers or more; what no plan of "
            "any cut, or of any two groups of pipelines with cuts of their own, can exceed. A stage `3x7` "
            "has 3 layers (embedding and head count as layers) and 7 workers; `*5` means five such stages; "
            "`@31` the micro-batches of a group; in halves: with every micro-batch split in two."
        ),
        columns=("job", "failed", "own cut", "oobleck", "chosen", "bound", "gap", "layout"),
        rows=tuple(
            (
                row.job,
                str(row.failures),
                f"{row.own:.3f}",
                "-" if row.oobleck is None else f"{row.oobleck:.3f}",
                f"{row.chosen:.3f}",
                f"{row.bound:.3f}",
                percent(row.bound / row.chosen - 1),
                row.layout,
            )
            for row in found
        ),
        origin=_PARTS.origin,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB[:FAILED,...]",
        help=f"any of {', '.join(ROWS)}, e.g. {next(iter(ROWS))}:0,2",
    )
    arguments = parser.parse_args()
    wanted: dict[str, tuple[int, ...]] = {}
    for text in arguments.jobs or ROWS:
        name, _, counts = text.partition(":")
        if name not in ROWS or not all(map(str.isdigit, counts.split(",") if counts else ())):
            parser.error(
                f"cannot make {text}; there are {', '.join(ROWS)}, and :0,2 after a name takes 0 and 2 failed"
            )
        wanted[name] = tuple(map(int, counts.split(","))) if counts else ROWS[name]
    print(section(wanted).text())


if __name__ == "__main__":
    main()
