"""Planning of this version beside another one: `python -m bench.two_versions RECYCLEC [jobs]`.

`RECYCLEC` is the command of the other version, in an environment of its own. Both compile every job in turn,
so that what else the machine does meets both. Both get a day for it: on a machine that does much else, the
usual time limit would cut plans short.
"""

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.measure import RECYCLEC, run
from bench.plans import NAMES
from bench.report import Section, job_path, percent

TITLE = "Two versions"


class Measured(NamedTuple):
    """One version's result for a job."""

    cpu_seconds: float
    """The median of all turns."""
    gaps: tuple[float, ...]
    periods: tuple[float, ...]
    bundle_bytes: int


def section(other: Path, revision: str, names: Sequence[str], turns: int) -> Section:
    """One row for each job."""
    return Section(
        title=TITLE,
        command=f"python -m bench.two_versions --name {revision}",
        words=(
            f"`recyclec compile` of revision {revision} and of this one, in turn ({turns} each); CPU seconds "
            "are of all processes of a command, the median of its turns. `slower` counts the plans of this "
            "version whose period is longer than before."
        ),
        columns=(
            "job", "CPU s before", "now", "ratio", "mean gap before", "now", "worst gap before", "now",
            "slower", "bundle bytes before", "now",
        ),
        rows=tuple(_row(name, other, turns) for name in names),
    )  # fmt: skip


def _row(name: str, other: Path, turns: int) -> tuple[str, ...]:
    runs: list[tuple[Measured, Measured]] = []
    for _ in range(turns):
        runs.append((_measured(other, name), _measured(RECYCLEC, name)))
    before, now = (
        each[0]._replace(cpu_seconds=statistics.median(one.cpu_seconds for one in each))
        for each in zip(*runs, strict=True)
    )
    # Rows that are done are not lost when a later one fails.
    print(name, before[0], now[0], flush=True)
    pairs = zip(before.periods, now.periods, strict=True)
    return (
        name,
        f"{before.cpu_seconds:.1f}",
        f"{now.cpu_seconds:.1f}",
        f"{now.cpu_seconds / before.cpu_seconds:.2f}",
        *(percent(statistics.mean(one.gaps)) for one in (before, now)),
        *(percent(max(one.gaps)) for one in (before, now)),
        str(sum(period > was for was, period in pairs)),
        *(f"{one.bundle_bytes:,}" for one in (before, now)),
    )


def _measured(command: Path, name: str) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        job, bundle = Path(folder) / f"{name}.job", Path(folder) / "bench.plan"
        job.write_text(_with_a_day(job_path(name).read_text(encoding="utf-8")), encoding="utf-8")
        made = run([command, "--quiet", "compile", job, "-o", bundle, "--json"])
        size = bundle.stat().st_size
    plans = json.loads(made.stdout)["plans"]
    gaps, periods = (tuple(plan[field] for plan in plans) for field in ("gap", "period"))
    return Measured(made.cpu_seconds, gaps, periods, size)


def _with_a_day(job: str) -> str:
    limit = "time_limit = 86400 s"
    found = re.search(r"\bsolver\s*\{", job)
    if found is not None:
        return f"{job[: found.end()]} {limit} {job[found.end() :]}"
    return f"{job.rstrip().removesuffix('}')}  solver {{ {limit} }}\n}}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recyclec", type=Path, help="the command of the other version")
    parser.add_argument("names", nargs="*", default=list(NAMES), help="jobs in bench/jobs (default: all)")
    parser.add_argument("--name", default="before", help="how to call the other version")
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    print(section(arguments.recyclec, arguments.name, arguments.names, arguments.turns).text())


if __name__ == "__main__":
    main()
