"""Records of `bench.beside_torchft`, and the table that is made of them. Standard library only.

Times are in seconds of the machine's monotonic clock. A pause is seen in the times between steps, so it is
measured alike for both contestants:

    steps    |  |  |  | X         |     |  |  |  |  |        |  |  |
                        kill      pace back              worker back
                       <- pause ->                   <- return ->
"""

# ruff: noqa: E501
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

TORCHFT, RECYCLEC = "torchft", "recyclec"
WORKERS = 6
LEFT_OUT = 8
"""Steps at the beginning that do not count: the first ones take longer, and CUDA graphs are captured."""
LONG = 2.0
"""A step that takes so many times the median of undisturbed ones is part of a pause."""
SETTLED = 3
"""Steps in a row that are not long end the pause after a kill."""
UNNOTICED = 6
"""Steps after a kill within which the pause begins, if there is any."""
CLOSE = 0.02
"""Figures that differ by less than this share are called equal."""


class Step(NamedTuple):
    """A step that counts for the whole job."""

    at: float
    """When it was complete on all workers."""
    step: int
    loss: float | None
    """Mean over the micro-batches in it."""
    samples: int
    workers: int
    """Whose micro-batches are in it."""


class Kill(NamedTuple):
    """SIGKILL sent to a worker process."""

    at: float
    worker: int


class DeviceMemory(NamedTuple):
    """Bytes on the device that has most; `used` is what nvidia-smi shows, with what CUDA and NCCL take."""

    allocated: int = 0
    reserved: int = 0
    used: int = 0


class Record(NamedTuple):
    """One contestant's run."""

    name: str
    started: float
    steps: tuple[Step, ...] = ()
    kills: tuple[Kill, ...] = ()
    ended_by_themselves: int | None = None
    """Worker processes that ended without being killed; None: not counted."""
    memory: DeviceMemory = DeviceMemory()
    error: str | None = None

    def save(self, folder: Path) -> None:
        path = folder / f"{self.name}.json"
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(self._asdict()), encoding="utf-8")
        aside.replace(path)


def read_record(folder: Path, name: str) -> Record:
    """As `save` has written it."""
    fields: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    fields["steps"] = tuple(Step(*each) for each in fields["steps"])
    fields["kills"] = tuple(Kill(*each) for each in fields["kills"])
    fields["memory"] = DeviceMemory(*fields["memory"])
    return Record(**fields)


class Disturbance(NamedTuple):
    """A kill, and what followed until the next one; times in seconds."""

    pause: float
    """The longest time between two steps before the pace is back."""
    pace_back: float
    """From the kill to the end of the last long step of that pause."""
    worker_back: float | None
    """From the kill to the first step with all workers; None: not before the next kill."""
    longest_later: float
    """The longest time between two steps after the pace is back."""
    rate_without: float
    """Samples per second from the kill until the worker is back."""
    rate_after: float | None
    """From then until the next kill."""


def undisturbed(record: Record) -> list[Step]:
    """Steps before the first kill, without the beginning."""
    first = record.kills[0].at if record.kills else math.inf
    return [step for step in record.steps if step.at < first][LEFT_OUT:]


def step_seconds(record: Record) -> float | None:
    """The median time of an undisturbed step."""
    gaps = [later.at - one.at for one, later in itertools.pairwise(undisturbed(record))]
    return median(gaps) if gaps else None


def rate(steps: Sequence[Step], begin: float, end: float) -> float:
    """Samples per second of the steps that became complete in this time."""
    return sum(step.samples for step in steps if begin < step.at <= end) / (end - begin)


def disturbances(record: Record) -> list[Disturbance]:
    """One for each kill after which a step was made."""
    usual = step_seconds(record)
    if usual is None or not record.kills:
        return []
    ends = [*(kill.at for kill in record.kills[1:]), record.steps[-1].at]
    found = [
        _disturbance(record.steps, kill.at, end, LONG * usual)
        for kill, end in zip(record.kills, ends, strict=True)
    ]
    return [each for each in found if each is not None]


def _disturbance(steps: Sequence[Step], kill: float, until: float, long: float) -> Disturbance | None:
    before = [step for step in steps if step.at <= kill][-1:]
    after = [step for step in steps if kill < step.at <= until]
    if not after or not before:
        return None
    gaps = [later.at - one.at for one, later in itertools.pairwise([*before, *after])]
    settled = _settled(gaps, long)
    pause = max(gaps[:settled])
    # The last step of the pause that was long; the longest, if none was.
    ends = [
        step.at for gap, step in zip(gaps[:settled], after, strict=False) if gap > min(long, 0.999 * pause)
    ]
    back = _worker_back(after)
    return Disturbance(
        pause,
        ends[-1] - kill,
        None if back is None else back - kill,
        max(gaps[settled:], default=0.0),
        rate(steps, kill, until if back is None else back),
        None if back is None or back >= until else rate(steps, back, until),
    )


def _settled(gaps: Sequence[float], long: float) -> int:
    """Number of these that belong to the pause after the kill. Before anybody notices the kill, some steps
    may become complete as usual."""
    ordinary, has_paused = 0, False
    for number, gap in enumerate(gaps, 1):
        has_paused = has_paused or gap > long
        ordinary = 0 if gap > long else ordinary + 1
        if ordinary >= SETTLED and (has_paused or number >= UNNOTICED):
            return number
    return len(gaps)


def _worker_back(after: Sequence[Step]) -> float | None:
    """Time of the first step with all workers that follows one with fewer."""
    fewer = next((number for number, step in enumerate(after) if step.workers < WORKERS), len(after))
    return next((step.at for step in after[fewer:] if step.workers == WORKERS), None)


class Figure(NamedTuple):
    """A row of the table."""

    name: str
    form: str
    less_is_better: bool | None
    """None: neither is better."""
    torchft: float | None
    recyclec: float | None

    def text(self, value: float | None) -> str:
        return "not measured" if value is None else self.form.format(value)

    @property
    def better(self) -> str | None:
        """The better contestant, unless the difference is small."""
        one, other = self.torchft, self.recyclec
        if self.less_is_better is None or one is None or other is None:
            return None
        if abs(one - other) <= CLOSE * max(abs(one), abs(other)):
            return None
        return TORCHFT if (one < other) == self.less_is_better else RECYCLEC


Choice = Callable[[Record], float | None]
LESS, MORE = True, False
SECONDS, RATE, COUNT, BYTES = "{:.2f} s", "{:.1f} samples/s", "{:.0f}", "{:.2f} GiB"


def _over(choose: Callable[[Disturbance], float | None], best: Callable[[list[float]], float]) -> Choice:
    """Over all kills of a contestant."""

    def of(record: Record) -> float | None:
        values = [value for each in disturbances(record) if (value := choose(each)) is not None]
        return best(values) if values else None

    return of


def _memory(choose: Callable[[DeviceMemory], int]) -> Choice:
    return lambda record: choose(record.memory) / 2**30 or None


def _start_up(record: Record) -> float | None:
    return record.steps[0].at - record.started if record.steps else None


def _step_milliseconds(record: Record) -> float | None:
    seconds = step_seconds(record)
    return None if seconds is None else 1000 * seconds


def _rate_before(record: Record) -> float | None:
    steps = undisturbed(record)
    return rate(steps, steps[0].at, steps[-1].at) if len(steps) > 1 else None


def _rate_disturbed(record: Record) -> float | None:
    if not record.kills or record.steps[-1].at <= record.kills[0].at:
        return None
    return rate(record.steps, record.kills[0].at, record.steps[-1].at)


def _share_kept(record: Record) -> float | None:
    before, disturbed = _rate_before(record), _rate_disturbed(record)
    return disturbed / before if before and disturbed is not None else None


def _missing(record: Record) -> list[int]:
    """Samples that each step lacks."""
    most = max((step.samples for step in record.steps), default=0)
    return [most - step.samples for step in record.steps]


ROWS: tuple[tuple[str, str, bool | None, Choice], ...] = (
    ("from start to the first step", SECONDS, LESS, _start_up),
    ("step before the first kill (median)", "{:.1f} ms", LESS, _step_milliseconds),
    ("throughput before the first kill", RATE, MORE, _rate_before),
    ("workers killed", COUNT, None, lambda record: len(record.kills)),
    ("pause after a kill (median)", SECONDS, LESS, _over(lambda each: each.pause, median)),
    ("pause after a kill (worst)", SECONDS, LESS, _over(lambda each: each.pause, max)),
    ("from a kill until the pace is back (median)", SECONDS, LESS, _over(lambda each: each.pace_back, median)),
    ("from a kill until the worker is back (median)", SECONDS, LESS, _over(lambda each: each.worker_back, median)),
    ("longest step after that, such as at the return (median)", SECONDS, LESS, _over(lambda each: each.longest_later, median)),
    ("throughput from a kill until the worker is back (median)", RATE, MORE, _over(lambda each: each.rate_without, median)),
    ("throughput after the return (median)", RATE, MORE, _over(lambda each: each.rate_after, median)),
    ("throughput from the first kill to the end", RATE, MORE, _rate_disturbed),
    ("the same, as a share of that before the first kill", "{:.0%}", MORE, _share_kept),
    ("steps made", COUNT, None, lambda record: len(record.steps)),
    ("steps with fewer samples", COUNT, LESS, lambda record: sum(map(bool, _missing(record)))),
    ("samples left out of their step", COUNT, LESS, lambda record: sum(_missing(record))),
    ("worker processes that ended by themselves", COUNT, LESS, lambda record: record.ended_by_themselves),
    ("most memory allocated by torch on a device", BYTES, LESS, _memory(lambda memory: memory.allocated)),
    ("most memory reserved by torch on a device", BYTES, LESS, _memory(lambda memory: memory.reserved)),
    ("most memory in use on a device, by nvidia-smi", BYTES, LESS, _memory(lambda memory: memory.used)),
)  # fmt: skip

PROVIDED = (
    ("layout", "6 replicas of the whole model, 3 micro-batches each", "2 stages x 3 pipelines, 6 micro-batches each"),
    (
        "a user provides",
        "a lighthouse process; a process for each replica, and what starts it again; a loop with Manager, "
        "Optimizer and DistributedDataParallel; functions that save and load its state",
        "a job file and the bundle compiled from it; a program file with layers, loss, data and optimizer",
    ),
)  # fmt: skip


def figures(torchft: Record, recyclec: Record, compile_seconds: float | None) -> list[Figure]:
    """Everything that was measured of both."""
    planning = Figure("planning beforehand", SECONDS, LESS, 0.0, compile_seconds)
    rows = [Figure(name, form, less, of(torchft), of(recyclec)) for name, form, less, of in ROWS]
    return [planning, *rows]


def report(folder: Path) -> str:
    """The table, what it says, and the losses, as Markdown."""
    torchft, recyclec = (read_record(folder, name) for name in (TORCHFT, RECYCLEC))
    compiled = folder / "compile.json"
    seconds = json.loads(compiled.read_text(encoding="utf-8"))["seconds"] if compiled.exists() else None
    rows = figures(torchft, recyclec, seconds)
    lines = ["| | torchft 0.2.0 | recyclec |", "|---|---:|---:|"]
    lines += [f"| {row.name} | {row.text(row.torchft)} | {row.text(row.recyclec)} |" for row in rows]
    lines += [f"| {' | '.join(row)} |" for row in PROVIDED]
    lines += _better(rows, TORCHFT, RECYCLEC) + _better(rows, RECYCLEC, TORCHFT)
    lines += ["", *_losses(torchft, recyclec)]
    lines += [f"\n{record.name}: {record.error}" for record in (torchft, recyclec) if record.error]
    return "\n".join(lines) + "\n"


def _better(rows: Sequence[Figure], name: str, other: str) -> list[str]:
    """In words, each with its figures."""
    found = [row for row in rows if row.better == name]
    if not found:
        return ["", f"{name} is better than {other} in no figure."]
    lines = ["", f"{name} is better than {other} in:", ""]
    for row in found:
        values = {TORCHFT: row.text(row.torchft), RECYCLEC: row.text(row.recyclec)}
        lines.append(f"- {row.name}: {values[name]}, {other} {values[other]}")
    return lines


def _losses(torchft: Record, recyclec: Record) -> list[str]:
    """Of about twelve steps that both have made, and how far they are apart before the first kill."""
    ones, others = ({step.step: step for step in record.steps} for record in (torchft, recyclec))
    killed = min((kill.at for kill in torchft.kills), default=math.inf)
    lines: list[str] = []
    apart: list[float] = []
    common = sorted(ones.keys() & others.keys())
    shown = {*common[:: max(1, len(common) // 12)], *common[-1:]}
    for one, other in ((ones[step], others[step]) for step in common):
        if one.loss is None or other.loss is None:
            continue
        if one.at < killed:
            apart.append(abs(one.loss - other.loss))
        if one.step in shown:
            cells = f"{one.step} | {one.loss:.4f} | {one.samples} | {other.loss:.4f} | {other.samples}"
            lines.append(f"| {cells} |")
    if not lines:
        return ["No step was made by both."]
    return [
        f"Before torchft's first kill, losses of the same steps are at most {max(apart, default=0.0):.1e} apart.",
        "",
        "| step | loss, torchft | samples in it | loss, recyclec | samples in it |",
        "|---:|---:|---:|---:|---:|",
        *lines,
    ]
