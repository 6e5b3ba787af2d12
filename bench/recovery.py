"""Duration of failures and returns of workers: `python -m bench.recovery`.

The running example's 12 workers on this machine. Each event happens in the middle of a step, to a worker of
another stage each time; the next one comes when the last is long over.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.measure import RECYCLEC
from bench.report import ROOT, Section
from recycle_runtime.launcher.local import RunOptions, RunResult, run_local
from recycle_runtime.protocol.messages.observers import Recovered

TITLE = "Failures and returns"
PROGRAM = str(ROOT / "examples" / "programs" / "mlp.py")
EVENTS = 12
APART = 32
COLUMNS = ("event", "times", "detection s", "leaving s", "regroup s", "total s, median", "worst", "step s")


def section() -> Section:
    """One row for every kind of event."""
    with tempfile.TemporaryDirectory() as folder:
        plan = str(Path(folder) / "figure3.plan")
        job = str(ROOT / "examples" / "figure3.job")
        subprocess.run([RECYCLEC, "--quiet", "compile", job, "-o", plan], check=True)
        killed = _run(plan, "kill")
        stopped = _run(plan, "stop")
    rows = (
        _row("killed (SIGKILL)", killed, _is_failure),
        _row("hangs (SIGSTOP)", stopped, _is_failure),
        _row("returns: joins as a standby", [*killed, *stopped], _is_arrival),
        _row("returns: gets micro-batches", [*killed, *stopped], _is_return),
    )
    return Section(
        title=TITLE,
        command="python -m bench.recovery",
        words=(
            "The running example's 12 workers on this machine, training the MLP example. Total is from the "
            "injected fault to the first instruction of the new plan on the last survivor. Detection of a "
            "hang includes the heartbeat timeout of 1.5 s. A worker that returns makes the others stop twice "
            "between two steps: when it joins as a standby, and when it has its state. These totals count "
            "from the moment when all have stopped. The last column is the time of an undisturbed step. No "
            "step was skipped or counted twice."
        ),
        columns=COLUMNS,
        rows=rows,
    )


def _run(plan: str, kind: str) -> list[tuple[Recovered, float]]:
    """Events of one run, each with the seconds of an undisturbed step."""
    faults: list[str] = []
    returns: list[str] = []
    for number in range(EVENTS):
        step, place = 4 + APART * number, f"{number % 3}:{number % 4}"
        faults.append(f"{kind}={place}@{step}")
        returns.append(f"{place}@{step + 2}")
    steps = 4 + APART * EVENTS
    result = run_local(RunOptions(plan, PROGRAM, steps, faults=tuple(faults), returns=tuple(returns)))
    _check(result, steps)
    seconds = median(step.seconds for step in result.steps)
    return [(row, seconds) for row in result.recoveries]


def _check(result: RunResult, steps: int) -> None:
    if [step.step for step in result.steps] != list(range(steps)):
        sys.exit("steps were skipped or counted twice")


def _is_failure(row: Recovered) -> bool:
    return any("killed" in cause for cause in row.causes)


def _is_arrival(row: Recovered) -> bool:
    return all("arrives" in cause for cause in row.causes)


def _is_return(row: Recovered) -> bool:
    return any("joins" in cause for cause in row.causes)


def _row(
    name: str, rows: list[tuple[Recovered, float]], wanted: Callable[[Recovered], bool]
) -> tuple[str, ...]:
    found = [row for row, _ in rows if wanted(row)]
    times = ([row.detection for row in found], [row.leaving for row in found], [row.regroup for row in found])
    parts = [f"{median(seconds):.3f}" for seconds in times]
    totals = [row.total for row in found]
    step = median(seconds for row, seconds in rows if wanted(row))
    return (name, str(len(found)), *parts, f"{median(totals):.3f}", f"{max(totals):.3f}", f"{step:.3f}")


if __name__ == "__main__":
    print(section().text())
