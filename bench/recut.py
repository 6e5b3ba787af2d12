"""Duration of the switch to another cut, next to the two stops of a re-join: `python -m bench.recut`.

The same run has both, so that what else the machine does touches them alike. A worker is killed, layers
travel and the cut changes; it comes back, and the cut changes back.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measure import RECYCLEC
from bench.report import ROOT, Section
from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.protocol.messages.observers import JobEvent, Recovered, ToObserver

TITLE = "Re-cuts"
PROGRAM = str(ROOT / "examples" / "programs" / "timed_layers.py")
EVENTS, APART, BACK = 5, 40, 16
COLUMNS = ("event", "times", "leaving s", "regroup s", "total s, median", "worst", "of a re-join")


def section() -> Section:
    """One row for every kind of stop."""
    rows, told = _run()
    whole = _median(rows, _is_arrival) + _median(rows, _is_return)
    kinds = (
        ("returns: joins as a standby", _is_arrival),
        ("returns: gets micro-batches", _is_return),
        ("the cut changes", _is_recut),
    )
    moved = [event for event in told if "moved in" in event]
    return Section(
        title=TITLE,
        command="python -m bench.recut",
        words=(
            "The six workers of examples/recut.job on this machine. All stops are between two steps, and "
            "totals count from the moment when all have stopped. The last column is the median as a share of "
            f"both stops of a re-join together. Layers travelled {len(moved)} times; steps went on meanwhile."
        ),
        columns=COLUMNS,
        rows=tuple(_row(name, rows, wanted, whole) for name, wanted in kinds),
    )


def _run() -> tuple[list[Recovered], list[str]]:
    """Every stop, and what was told."""
    faults: list[str] = []
    returns: list[str] = []
    for number in range(EVENTS):
        step, place = 6 + APART * number, f"{1 + number % 2}:{number % 2}"
        faults.append(f"kill={place}@{step}")
        returns.append(f"{place}@{step + BACK}")
    steps = 6 + APART * EVENTS
    told: list[str] = []

    def listen(message: ToObserver) -> None:
        if isinstance(message, JobEvent):
            told.append(message.text)

    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder) / "recut.plan")
        job = str(ROOT / "examples" / "recut.job")
        subprocess.run([RECYCLEC, "--quiet", "compile", job, "-o", plan], check=True)
        options = RunOptions(
            plan, PROGRAM, steps, faults=tuple(faults), returns=tuple(returns),
            adaptation=AdaptationOptions(replan=None, recut="always"),
        )  # fmt: skip
        result = run_local(options, listen)
    if [step.step for step in result.steps] != list(range(steps)):
        sys.exit("steps were skipped or counted twice")
    return result.recoveries, told


def _is_arrival(row: Recovered) -> bool:
    return all("arrives" in cause for cause in row.causes)


def _is_return(row: Recovered) -> bool:
    return any("joins" in cause for cause in row.causes)


def _is_recut(row: Recovered) -> bool:
    return any(cause.startswith("re-cut to") for cause in row.causes)


def _median(rows: list[Recovered], wanted: Callable[[Recovered], bool]) -> float:
    return median(row.total for row in rows if wanted(row))


def _row(
    name: str, rows: list[Recovered], wanted: Callable[[Recovered], bool], whole: float
) -> tuple[str, ...]:
    found = [row for row in rows if wanted(row)]
    parts = [
        f"{median(times):.3f}" for times in zip(*((row.leaving, row.regroup) for row in found), strict=True)
    ]
    typical = _median(rows, wanted)
    worst = max(row.total for row in found)
    return (name, str(len(found)), *parts, f"{typical:.3f}", f"{worst:.3f}", f"{typical / whole:.2f}")


if __name__ == "__main__":
    print(section().text())
