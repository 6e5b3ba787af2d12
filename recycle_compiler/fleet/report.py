"""Result of a simulation: one value, as a table for people, as JSON, and (page.py) as HTML."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from math import floor, inf, log10
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from recycle_compiler.fleet.accounts import NOTHING, GpuHours
from recycle_compiler.ir.units import percent

_UNBROKEN = 10_000
"""A width at which rich breaks no line."""
_ABOVE = 1.0005
"""A share that shows as more than 100 %."""
_TINY = 1e-6
"""Values below this are shown as `under 0.000001`."""
_SHORT = 0.1
"""Hours; what is shorter is said in seconds."""
_COLUMNS = ("of zero-bubble", "effective time", "GPU-hours lost", "hours still", "iterations", "done twice")
USES = {
    "useful": "useful",
    "redone": "done twice",
    "slowed": "slowed",
    "reconfiguring": "reconfiguring",
    "saving": "saving",
    "spare": "idle spare",
    "down": "down",
}
"""Columns of GPU-hours, and what heads them."""
_MILLION = 1e6
_FROM_CHECKPOINT = "from a checkpoint"
"""Words of policies in their logs."""
_MOST_READS = 5
"""Returns of ours to a checkpoint that the table names."""


def figure(value: float) -> str:
    """A number as people write it: four digits that count, never an exponent."""
    if abs(value) >= 1000 or value == 0:
        return f"{value:,.0f}"
    if abs(value) < _TINY:
        return f"under {_TINY:.6f}"
    decimals = 3 - floor(log10(abs(value)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def span_text(hours: float) -> str:
    """`12 h`, or `8 s` where that would be a small part of an hour."""
    return f"{figure(hours)} h" if hours >= _SHORT else f"{figure(3600 * hours)} s"


def counted(count: int, noun: str) -> str:
    """`1 GPU`, `2,048 GPUs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class FleetPoint(NamedTuple):
    """From here to the next point nothing changes."""

    hours: float
    live: int
    """Workers of the job whose machine is up; spare machines do not count."""
    throughput: float
    """In the report's unit. Work that had to be redone counts as none from when it was done."""


class LogEntry(NamedTuple):
    """One line of a policy's log: what it made of a change."""

    hours: float
    live: int
    pause: float
    """Seconds without progress from here on."""
    redone: float
    """Seconds of earlier work that have to be redone."""
    throughput: float
    """Once the pause is over, in the report's unit."""
    why: str

    @property
    def reads_checkpoint(self) -> bool:
        """True if training goes on from a checkpoint."""
        return _FROM_CHECKPOINT in self.why

    def gpu_hours(self, gpus: int) -> float:
        """Cost of the change to a job of so many GPUs: the pause, and the work that is done again."""
        return (self.pause + self.redone) * gpus / 3600


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """Result of one policy on the trace."""

    name: str
    """As users write it: `ours`, `recycle`, ..."""
    note: str
    """Assumptions about how the policy was modelled, or the sentence why it cannot run."""
    average: float | None
    """Over the whole span, in the report's unit; None where the policy cannot run this job."""
    share: float | None = None
    """The average, as a share of the report's reference."""
    gpu_hours_lost: float | None = None
    """(1 - share) x GPUs x hours: GPU-hours paid for beyond those that the reference would have needed."""
    still: float = 0.0
    """Hours without progress: pauses, saves, and times when it could not run."""
    iterations: float = 0.0
    """Done and kept."""
    redone: float = 0.0
    """Iterations that had to be done again."""
    timeline: tuple[FleetPoint, ...] = ()
    """Begins at 0 and ends at the report's hours; its integral is iterations x the unit per iteration."""
    log: tuple[LogEntry, ...] = ()
    effective_training_time: float = 0.0
    """The time that the policy would have needed without failures for the iterations kept, as a share of the
    time that it took."""
    gpu_hours: GpuHours = NOTHING
    """GPU-hours by use."""

    @property
    def checkpoints_read(self) -> tuple[LogEntry, ...]:
        """Each time that it went back to a checkpoint."""
        return tuple(entry for entry in self.log if entry.reads_checkpoint)


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A job, a trace, and what each policy made of it."""

    job: str
    trace: str
    """The file's name, or the words that it was generated from."""
    about: str
    """A sentence on the trace: machines, events, what was chosen at random."""
    unit: str
    """Of averages and timelines: `samples/s` or `micro-batches/s`."""
    hours: float
    workers: int
    gpus: int
    """Of the whole job: workers x tensor-parallel width."""
    reference: float
    """Throughput of our plan without failures, in the same unit: what 100 % means."""
    gpu_hours_down: float
    """GPU-hours that machines of the job were down, the same for all policies."""
    outcomes: tuple[PolicyOutcome, ...]
    """In the order of the table, ours first."""
    spare_gpus: int = 0
    """Of machines beyond those of the job."""
    price: float | None = None
    """Of a GPU-hour."""

    @property
    def paid(self) -> float:
        """GPU-hours of the whole fleet, spares and machines that are down included."""
        return (self.gpus + self.spare_gpus) * self.hours

    @property
    def per_million(self) -> str:
        """Words for such a price."""
        return f"per million {self.unit.partition('/')[0]}"

    def cost_per_million(self, outcome: PolicyOutcome) -> float | None:
        """Price of a million of what the unit counts; None without a price, or where nothing was done."""
        if self.price is None or not outcome.average:
            return None
        return self.price * self.paid * _MILLION / (outcome.average * self.hours * 3600)


def report_table(report: FleetReport, color: bool = False) -> str:
    """One line per policy, then what the columns mean and how each policy was modelled."""
    priced = () if report.price is None else (report.per_million,)
    titles = ("policy", report.unit, *_COLUMNS, *priced)
    rows = [(outcome.name, *_cells(outcome, report)) for outcome in report.outcomes]
    ran = [outcome for outcome in report.outcomes if outcome.average is not None]
    uses = [(outcome.name, *(f"{getattr(outcome.gpu_hours, name):,.1f}" for name in USES)) for outcome in ran]
    tables = [printed_table(titles, rows, color)]
    if uses:
        tables.append(printed_table(("GPU-hours", *USES.values()), uses, color))
    return "\n".join((_title(report), *tables, _legend(report)))


def printed_table(titles: Sequence[str], rows: Sequence[Sequence[str]], color: bool = False) -> str:
    """Lines of a table whose first column is names and whose others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, title in enumerate(titles):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    sink = StringIO()
    width = Console(width=_UNBROKEN).measure(table).maximum
    console = Console(file=sink, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in sink.getvalue().splitlines())


def _title(report: FleetReport) -> str:
    about = f"; {report.about}" if report.about else ""
    return (
        f"{report.job}: {counted(report.workers, 'worker')}, {counted(report.gpus, 'GPU')}, "
        f"{span_text(report.hours)} of {report.trace}{about}\n"
    )


def _cells(outcome: PolicyOutcome, report: FleetReport) -> tuple[str, ...]:
    priced = () if report.price is None else (_money(report.cost_per_million(outcome)),)
    if outcome.average is None or outcome.share is None or outcome.gpu_hours_lost is None:
        return ("cannot run", *("-" for _ in _COLUMNS), *priced)
    return (
        figure(outcome.average),
        percent(outcome.share),
        percent(outcome.effective_training_time),
        f"{round(outcome.gpu_hours_lost, 1) + 0.0:,.1f}",
        f"{outcome.still:,.2f}",
        f"{outcome.iterations:,.0f}",
        f"{outcome.redone:,.1f}",
        *priced,
    )


def _money(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.2f}"


def paid_words(report: FleetReport) -> Iterator[str]:
    """Sum of the columns of GPU-hours, and its price."""
    yield (
        f"GPU-hours by use add up to the {report.paid:,.1f} that are paid for{_spares(report)}. Slowed: by "
        "missing workers. Down: machines that are down, and others while the job cannot run."
    )
    if report.price is not None:
        whole = report.price * report.paid
        yield f"At {figure(report.price)} for a GPU-hour all of them cost {whole:,.0f}."


def _legend(report: FleetReport) -> str:
    total = report.gpus * report.hours
    lines = [
        f"100 % is our plan without failures: {figure(report.reference)} {report.unit}.",
        "Effective time: what the policy would have needed without failures for the same iterations.",
        f"GPU-hours lost: what is missing to 100 %, of {total:,.1f} GPU-hours of the job; "
        f"machines of the job were down for {report.gpu_hours_down:,.1f}.",
        "Hours still: pauses, saves, and times when the job could not run. Done twice: iterations redone.",
        *paid_words(report),
    ]
    if any(outcome.share is not None and outcome.share > _ABOVE for outcome in report.outcomes):
        lines.append(
            "More than 100 %: a policy that cuts the model anew can have more even stages than the job."
        )
    lines += _checkpoints_read(report)
    lines.append("")
    width = max(len(outcome.name) for outcome in report.outcomes)
    lines += [f"{outcome.name:<{width}}  {outcome.note}" for outcome in report.outcomes]
    return "".join(f"{line}\n" for line in lines)


def _checkpoints_read(report: FleetReport) -> Iterator[str]:
    """Times and reasons of ours going back to a checkpoint, which it seldom does."""
    found = report.outcomes[0].checkpoints_read
    for entry in found[:_MOST_READS]:
        yield (
            f"{report.outcomes[0].name} read a checkpoint after {figure(entry.hours)} h, which cost "
            f"{figure(entry.gpu_hours(report.gpus))} GPU-hours: {entry.why}."
        )
    if len(found) > _MOST_READS:
        yield f"It read {len(found) - _MOST_READS} more; --format json has all of them."


def _spares(report: FleetReport) -> str:
    return f", with {counted(report.spare_gpus, 'GPU')} of spare machines" if report.spare_gpus else ""


def report_document(report: FleetReport) -> str:
    """Averages, timelines and logs of all policies; null where a policy cannot run."""
    head: dict[str, Any] = {
        "job": report.job,
        "trace": report.trace,
        "about": report.about,
        "unit": report.unit,
        "hours": short_number(report.hours),
        "workers": report.workers,
        "gpus": report.gpus,
        "reference": short_number(report.reference),
        "gpu_hours_down": short_number(report.gpu_hours_down),
        "spare_gpus": report.spare_gpus,
        "gpu_hours_paid": short_number(report.paid),
    }
    if report.price is not None:
        head |= {"price": report.price, "cost": short_number(report.price * report.paid)}
    policies = ",\n  ".join(
        f"{json.dumps(outcome.name)}: {json.dumps(_policy(outcome, report))}" for outcome in report.outcomes
    )
    return f'{json.dumps(head)[:-1]}, "policies": {{\n  {policies}\n}}}}\n'


def _policy(outcome: PolicyOutcome, report: FleetReport) -> dict[str, Any]:
    ran = outcome.average is not None
    priced = (
        {} if report.price is None else {"cost_per_million": short_number(report.cost_per_million(outcome))}
    )
    return {
        "average": short_number(outcome.average),
        "unit": report.unit,
        "share": short_number(outcome.share),
        "effective_training_time": short_number(outcome.effective_training_time) if ran else None,
        "gpu_hours": {name: short_number(hours) for name, hours in outcome.gpu_hours._asdict().items()}
        if ran
        else None,
        **priced,
        "gpu_hours_lost": short_number(outcome.gpu_hours_lost),
        "hours_still": short_number(outcome.still),
        "iterations": short_number(outcome.iterations),
        "done_twice": short_number(outcome.redone),
        "checkpoints_read": [
            {
                "hours": round(entry.hours, 9),
                "gpu_hours": short_number(entry.gpu_hours(report.gpus)),
                "why": entry.why,
            }
            for entry in outcome.checkpoints_read
        ],
        "note": outcome.note,
        "timeline": [
            [round(at, 9), live, short_number(throughput)] for at, live, throughput in outcome.timeline
        ],
        "log": [
            {
                "hours": round(entry.hours, 9),
                "live": entry.live,
                "pause": short_number(entry.pause),
                "redone": short_number(entry.redone),
                "throughput": short_number(entry.throughput),
                "why": entry.why,
            }
            for entry in outcome.log
        ],
    }


def short_number(value: float | None) -> float | None:
    """Nine digits that count are enough, and the same on any machine; JSON has no infinity."""
    return None if value is None or value == inf else float(f"{value:.9g}")
