"""Compiled stages, with our schedules and torch's: `python -m bench.beside_torch_compiled`.

    eager                  the layers as they are
    layer.compile()        each compiled in place, by the program's COMPILE
    torch.compile(stage)   a wrapper around the stage, for torch's schedules

The program, processes and turns are those of `bench.beside_torch`. All ways start from the same numbers, so
losses tell whether a schedule trains compiled layers at all; what a schedule ends with otherwise is its row.
Ours computes the gradients of compiled layers at once, when that of the input is due: nothing is left for W.
"""

import argparse
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from bench import turns
from bench.beside_torch import LOSSES_AGREE, RECYCLEC, started
from bench.measure import run
from bench.models import gpt_text
from bench.report import job_path
from bench.turns import Pair, Turn, TurnError, share

EAGER, IN_PLACE, WRAPPED = "eager", "`layer.compile()`", "`torch.compile(stage)`"
ADDED = {EAGER: "", IN_PLACE: "\nCOMPILE = True\n", WRAPPED: "\nWRAPPED = True\n"}
"""To the program."""
PLANS = {"1f1b.plan": "none", "zero-bubble.plan": "decouple,stagger"}
OURS = {"1F1B": "1f1b.plan", "zero-bubble": "zero-bubble.plan"}
TORCHS = {
    "Schedule1F1B": "torch_1f1b",
    "ScheduleInterleavedZeroBubble": "torch_interleaved_zero_bubble",
    "ScheduleZBVZeroBubble": "torch_zbv",
}
COLUMNS = (
    "stages",
    "schedule",
    "ms a step",
    "of our 1F1B, eager",
    "least to most",
    "of its CPU time",
    "losses",
)


class Way(NamedTuple):
    """One schedule with stages of one kind."""

    stages: str
    schedule: str
    work: str
    """A function of bench/contestants.py."""
    file: str


def ways() -> list[Way]:
    """The first is what others are compared with."""
    found = [
        *(Way(stages, name, "ours", file) for stages in (EAGER, IN_PLACE) for name, file in OURS.items()),
        *(Way(stages, name, work, "") for stages in (EAGER, IN_PLACE) for name, work in TORCHS.items()),
    ]
    return [*found, *(Way(WRAPPED, name, work, "") for name, work in TORCHS.items() if "Zero" in name)]


def verdict(losses: Sequence[float], expected: Sequence[float]) -> str:
    """Largest distance of the losses of the same steps from those expected."""
    apart = max(abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=True))
    return f"{apart:.0e} apart" if apart <= LOSSES_AGREE else f"**wrong: {apart:.0e} apart**"


def measure(width: int, warm_up: int, rounds: int, steps: int) -> list[tuple[str, ...]]:
    """A row for each way; all that work take turns."""
    losses: dict[Way, list[float]] = {}
    failed: dict[Way, str] = {}
    racing: dict[Way, Pair] = {}
    made: dict[Way, list[Turn]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        for plan, techniques in PLANS.items():
            job = job_path("beside-torch")
            run([RECYCLEC, "--quiet", "compile", job, "--techniques", techniques, "-o", folder / plan])
        for number, text in enumerate(ADDED.values()):
            (folder / f"program-{number}.py").write_text(gpt_text(width) + text, encoding="utf-8")
        for way in ways():
            program = folder / f"program-{list(ADDED).index(way.stages)}.py"
            (pair,) = stack.enter_context(started([(way.work, folder / way.file)], program))
            try:
                losses[way] = pair.turn(warm_up).losses
                racing[way] = pair
            except TurnError as error:
                failed[way] = " ".join(str(error).split())
            print(f"{way.stages}, {way.schedule}: {failed.get(way, 'runs')}", file=sys.stderr, flush=True)
        for _ in range(rounds):
            for way, pair in racing.items():
                made.setdefault(way, []).append(pair.turn(steps))
    first = ways()[0]
    rows: list[tuple[str, ...]] = []
    for way in ways():
        if way in failed:
            rows.append((way.stages, way.schedule, *[""] * 4, failed[way]))
            continue
        seconds, theirs = ([turn.seconds for turn in made[each]] for each in (way, first))
        cpu, of = ([turn.cpu for turn in made[each]] for each in (way, first))
        each = [one / other for one, other in zip(seconds, theirs, strict=True)]
        time, ratio = f"{1000 * statistics.median(seconds):.1f}", f"{share(seconds, theirs):.3f}"
        between, computing = f"{min(each):.2f} to {max(each):.2f}", f"{share(cpu, of):.2f}"
        agree = verdict(losses[way], losses[first])
        rows.append((way.stages, way.schedule, time, ratio, between, computing, agree))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--warm-up", type=int, default=14, help="steps, whose losses are compared")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for a turn; compiling is one")
    arguments = parser.parse_args()
    turns.PATIENCE = arguments.patience
    rows = measure(arguments.width, arguments.warm_up, arguments.rounds, arguments.steps)
    print(f"width {arguments.width}, torch {version('torch')}, Python {platform.python_version()}\n")
    for row in (COLUMNS, ("---",) * len(COLUMNS), *rows):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
