"""The event engine against what plans say and what runs take: `python -m bench.agreement [names]`.

    python -m bench.agreement figure3 deep-64            these jobs of bench/jobs; without names, all of them
    python -m bench.agreement --bundle scale-2048.plan   a bundle that was compiled before; may be repeated
    python -m bench.agreement --runs                     real runs on this machine and on a GPU as well

Compiling all jobs takes minutes, running their plans in the engine seconds.
"""

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path

from bench import engine_beside_runs
from bench.measure import RECYCLEC
from bench.report import JOBS, Section, job_path
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle

TITLE = "Plans in the event engine"
NAMES = tuple(sorted(path.stem for path in JOBS.glob("*.job")))


def section(names: Sequence[str] = NAMES, bundles: Sequence[Path] = ()) -> Section:
    """One row for each job to be compiled and for each bundle."""
    return Section(
        title=TITLE,
        command=" ".join(("python -m bench.agreement", *(names if tuple(names) != NAMES else ()))),
        words=(
            "Every plan of every job is decoded from its bundle and run by the event engine, which shares no "
            "code with the planner: its period in the long run and its makespan must be those that the plan "
            "claims, to the tick. A plan's period is in whole ticks; where the slowest loop goes through two "
            "iterations, the engine's mean may be half a tick less. CPU seconds are for decoding and "
            "running, the first plan's with all that has to be loaded."
        ),
        columns=("job", "workers", "plans", "equal", "instructions per plan", "CPU s", "per plan", "most"),
        rows=tuple(_rows(names, bundles)),
    )


def _rows(names: Sequence[str], bundles: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    for path in bundles:
        yield row_of(Bundle.read(path))
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            plan = Path(folder, f"{name}.plan")
            subprocess.run([RECYCLEC, "--quiet", "compile", job_path(name), "-o", plan], check=True)
            yield row_of(Bundle.read(plan))


def row_of(bundle: Bundle) -> tuple[str, ...]:
    """The engine's result for the plans of a bundle."""
    equal, seconds = 0, list[float]()
    for number, plan in enumerate(bundle.plans):
        began = time.process_time()
        outcome = simulate(bundle, number, iterations=1)
        seconds.append(time.process_time() - began)
        equal += (ceil(outcome.period), outcome.makespan) == (plan.period, plan.makespan)
    count = len(bundle.plans)
    return (
        bundle.job_text.split(maxsplit=2)[1],
        f"{bundle.stages * bundle.pipelines:,}",
        str(count),
        str(equal),
        f"{bundle.instructions // count:,}",
        f"{sum(seconds):.2f}",
        f"{sum(seconds) / count:.3f}",
        f"{max(seconds):.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}")
    parser.add_argument(
        "--bundle", type=Path, action="append", default=[], metavar="PLAN", help="compiled before"
    )
    parser.add_argument("--runs", action="store_true", help="real runs too: keep the machine idle meanwhile")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in NAMES]:
        parser.error(f"unknown job {unknown[0]}; there are {', '.join(NAMES)}")
    for path in arguments.bundle:
        if not path.is_file():
            parser.error(f"there is no bundle {path}")
    names = arguments.names or (() if arguments.bundle or arguments.runs else NAMES)
    if names or arguments.bundle:
        print(section(names, arguments.bundle).text(), flush=True)
    if arguments.runs:
        print(engine_beside_runs.section().text())


if __name__ == "__main__":
    main()
