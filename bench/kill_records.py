"""Records of runs under kills, one JSON object a line, and the table of a report. Standard library only.

    row         a step of the whole job: its number, its loss, when it was complete
    kill        SIGKILL sent to a worker process, and what that worker was doing
    generation  a new group of workers is ordered
    recovered   it trains: causes, where training goes on, how long each phase took
    event       anything else that the job says, in words
    end         of the run: None, or why it ended before its time

Times are in seconds of the machine's monotonic clock. A file is written as the run goes, so one that was cut
off lacks nothing but its end.
"""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

Worker = tuple[int, int]

LEFT_OUT = 5
"""Rows at the beginning of a run that do not count for step times: a first step takes longer."""
_KILLED = re.compile(r"(\d+):(\d+) was killed")
_PLANNED = re.compile(r" (arrives|joins|moves to \S+)$")


class RecordFile:
    """Appends one line for each thing that happens; threads may share it."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def write(self, kind: str, at: float, **fields: object) -> None:
        line = json.dumps({"kind": kind, "at": round(at, 6), **fields})
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class TimedRow(NamedTuple):
    """A step that counts."""

    at: float
    step: int
    loss: float | None
    live: int
    """Workers."""


class WorkerKill(NamedTuple):
    """A worker process that was sent SIGKILL."""

    at: float
    worker: Worker
    state: str
    """True if it was `training` or `joining`."""


class TimedRecovery(NamedTuple):
    """A change of generation that is complete; its parts in seconds."""

    at: float
    causes: tuple[str, ...]
    undone: int
    """Workers that took a step back."""
    repeated: float
    leaving: float
    regroup: float

    @property
    def seconds(self) -> float:
        return self.leaving + self.regroup

    @property
    def began(self) -> float:
        """The moment at which the coordinator heard of it."""
        return self.at - self.seconds

    @property
    def is_kill(self) -> bool:
        return any("was killed" in cause for cause in self.causes)

    @property
    def is_planned(self) -> bool:
        """True if workers come or move, between two steps, and nothing has failed."""
        return all(_PLANNED.search(cause) for cause in self.causes)


class RunRecord(NamedTuple):
    """One run of a series in which each goes on from the last checkpoint of the one before it."""

    rows: tuple[TimedRow, ...]
    kills: tuple[WorkerKill, ...]
    recoveries: tuple[TimedRecovery, ...]
    """Without the start."""
    error: str | None

    @property
    def seconds(self) -> float:
        """From one row to the last, without the beginning."""
        counted = self.rows[LEFT_OUT:]
        return counted[-1].at - counted[0].at if counted else 0.0

    @property
    def steps(self) -> int:
        """Made in these seconds."""
        return max(0, len(self.rows) - LEFT_OUT - 1)


class Pause(NamedTuple):
    """Training stands still because workers were killed; times in seconds."""

    kills: tuple[WorkerKill, ...]
    """Two at once, or one during the recovery from another, make one pause."""
    lost: float
    """From the last row before to the first row after it, less what as many undisturbed steps take."""
    detection: float
    """From the first kill to when the coordinator has heard of it."""
    leaving: float
    regroup: float


def read_runs(folder: Path, name: str) -> list[RunRecord]:
    """All runs of a series, in order."""
    paths = sorted(folder.glob(f"{name}-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return [read_run(path.read_text(encoding="utf-8")) for path in paths]


def read_run(text: str) -> RunRecord:
    """Contents of a file of records; its last line may be cut off."""
    rows: list[TimedRow] = []
    kills: list[WorkerKill] = []
    recoveries: list[TimedRecovery] = []
    error: str | None = "the run was cut off"
    for line in _lines(text):
        match line["kind"]:
            case "row":
                rows.append(TimedRow(line["at"], line["step"], line["loss"], line["live"]))
            case "kill":
                pipeline, stage = line["worker"]
                kills.append(WorkerKill(line["at"], (pipeline, stage), line["state"]))
            case "recovered" if line["causes"] != ["start"]:
                recoveries.append(
                    TimedRecovery(
                        line["at"],
                        tuple(line["causes"]),
                        line["undone"],
                        line["repeated"],
                        line["leaving"],
                        line["regroup"],
                    )
                )
            case "end":
                error = line["error"]
            case _:
                pass
    return RunRecord(tuple(rows), tuple(kills), tuple(recoveries), error)


def _lines(text: str) -> Iterator[Mapping[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return


def step_seconds(runs: Sequence[RunRecord]) -> float:
    """The median time from one row to the next."""
    apart = [later.at - row.at for run in runs for row, later in pairwise(run.rows[LEFT_OUT:])]
    return median(apart) if apart else 0.0


def pauses(run: RunRecord, step: float) -> list[Pause]:
    """Every time that kills stopped training until it went on. `step`: seconds of an undisturbed one."""
    found: list[Pause] = []
    waiting = list(run.kills)
    open_kills: list[WorkerKill] = []
    parts: list[TimedRecovery] = []
    ends = 0.0
    """When the first row came after the last of `parts`."""
    for recovery in run.recoveries:
        kills = _kills_of(recovery, waiting)
        if not kills:
            continue
        waiting = [kill for kill in waiting if kill not in kills]
        if parts and kills[0].at > ends:
            found += _pause(run.rows, open_kills, parts, step)
            open_kills, parts = [], []
        open_kills += kills
        parts.append(recovery)
        ends = min((row.at for row in run.rows if row.at > recovery.at), default=float("inf"))
    return [*found, *_pause(run.rows, open_kills, parts, step)]


def _kills_of(recovery: TimedRecovery, waiting: Sequence[WorkerKill]) -> list[WorkerKill]:
    """Kills that this recovery is from, the first one first: of each worker as many as its causes name."""
    matches = filter(None, map(_KILLED.match, recovery.causes))
    named = Counter((int(match[1]), int(match[2])) for match in matches)
    found: list[WorkerKill] = []
    for worker, times in named.items():
        earlier = [kill for kill in waiting if kill.worker == worker and kill.at < recovery.at]
        found += earlier[-times:]
    return sorted(found)


def _pause(
    rows: Sequence[TimedRow], kills: Sequence[WorkerKill], parts: Sequence[TimedRecovery], step: float
) -> Iterator[Pause]:
    """None if the run ended before training went on."""
    if not parts:
        return
    first = min(kill.at for kill in kills)
    before = [row for row in rows if row.at <= first]
    after = [row for row in rows if row.at > parts[-1].at]
    if not before or not after:
        return
    lost = after[0].at - before[-1].at - step * (after[0].step - before[-1].step)
    detection = max(0.0, parts[0].began - first)
    leaving, regroup = (sum(getattr(part, name) for part in parts) for name in ("leaving", "regroup"))
    yield Pause(tuple(kills), lost, detection, leaving, regroup)


def losses(runs: Sequence[RunRecord]) -> dict[int, float]:
    """Of each step whose loss is known."""
    return {row.step: row.loss for run in runs for row in run.rows if row.loss is not None}


class Comparison(NamedTuple):
    """Losses of two series, step by step."""

    steps: int
    largest: float
    at: int
    """The step of the largest difference."""
    relative: float
    """The largest difference as a share of the loss."""


def compare(quiet: Mapping[int, float], disturbed: Mapping[int, float]) -> Comparison:
    """Of all steps that both have made."""
    both = sorted(quiet.keys() & disturbed.keys())
    apart = [(abs(quiet[step] - disturbed[step]), step) for step in both]
    largest, at = max(apart, default=(0.0, 0))
    relative = max((difference / quiet[step] for difference, step in apart), default=0.0)
    return Comparison(len(both), largest, at, relative)


def missing_and_twice(runs: Sequence[RunRecord]) -> tuple[int, int]:
    """Steps of a series without a row, and rows beyond one for each step."""
    made = [row.step for run in runs for row in run.rows]
    return max(made, default=-1) + 1 - len(set(made)), len(made) - len(set(made))


def report_rows(quiet: Sequence[RunRecord], disturbed: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """The table: what was measured, and the number."""
    step = step_seconds(quiet)
    kills = [kill for run in disturbed for kill in run.kills]
    stops = [pause for run in disturbed for pause in pauses(run, step)]
    recoveries = [recovery for run in disturbed for recovery in run.recoveries]
    returns = [one for one in recoveries if one.is_planned]
    others = [one for one in recoveries if not one.is_planned and not one.is_kill]
    seconds, steps = sum(run.seconds for run in disturbed), sum(run.steps for run in disturbed)
    quiet_seconds, quiet_steps = sum(run.seconds for run in quiet), sum(run.steps for run in quiet)
    missing, twice = missing_and_twice(disturbed)
    found = compare(losses(quiet), losses(disturbed))
    rows = [row for run in disturbed for row in run.rows]
    joining = sum(kill.state == "joining" for kill in kills)
    errors = [run.error for run in disturbed if run.error is not None]
    per_kill = (seconds - steps * step) / len(kills) if kills else 0.0
    rate, quiet_rate = _ratio(steps, seconds), _ratio(quiet_steps, quiet_seconds)
    return [
        ("workers killed with SIGKILL", f"{len(kills)}, {joining} of them while they joined"),
        ("kills per hour survived", f"{3600 * _ratio(len(kills), seconds):,.0f}"),
        (
            "runs, each from the last checkpoint of the one before",
            f"{len(disturbed)}, {len(errors)} ended early",
        ),
        ("pauses after kills", f"{len(stops)}; two at once make one, a worker outside the group none"),
        ("time lost in a pause: median, worst", _median_and_worst([one.lost for one in stops])),
        ("of that, detection (median)", _median([one.detection for one in stops])),
        ("of that, leaving the old group (median)", _median([one.leaving for one in stops])),
        ("of that, forming the next group (median)", _median([one.regroup for one in stops])),
        (
            "pause when a worker arrives, joins or moves: median, worst",
            _median_and_worst([one.seconds for one in returns]),
        ),
        ("recoveries from anything else", str(len(others))),
        ("time lost per kill, returns and fewer workers included", f"{per_kill:.3f} s"),
        ("steps made", f"{len(rows):,}"),
        ("steps that some workers had made and took back", str(sum(one.undone > 0 for one in recoveries))),
        ("training that was repeated", f"{sum(one.repeated for one in recoveries):.1f} s of {seconds:.0f} s"),
        ("steps missing, counted twice", f"{missing}, {twice}"),
        ("steps whose loss is not known", str(sum(row.loss is None for row in rows))),
        (
            f"largest difference of losses, over the {found.steps:,} steps of both",
            f"{found.largest:.1e} at step {found.at} ({100 * found.relative:.2g} % of the loss at most)",
        ),
        ("steps per second, undisturbed", f"{quiet_rate:.2f}"),
        ("steps per second, under kills", f"{rate:.2f} ({100 * _ratio(rate, quiet_rate):.0f} %)"),
    ]


def _ratio(value: float, of: float) -> float:
    return value / of if of else 0.0


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.3f} s" if values else "none"


def _median_and_worst(values: Sequence[float]) -> str:
    return f"{median(values):.3f} s, {max(values):.3f} s" if values else "none"


def markdown(rows: Sequence[tuple[str, str]]) -> str:
    """A table of two columns."""
    lines = (("", "measured"), ("---", "---:"), *rows)
    return "".join(f"| {name} | {value} |\n" for name, value in lines)
