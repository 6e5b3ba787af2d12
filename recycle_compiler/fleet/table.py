"""A report as a table for people."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from recycle_compiler.fleet.report import Outcome, Report
from recycle_compiler.ir.units import percent, plural

_UNBROKEN = 10_000
"""A width at which rich breaks no line."""
_ABOVE = 1.0005
"""A share that shows as more than 100 %."""
_COLUMNS = ("of zero-bubble", "GPU-hours lost", "hours still", "iterations", "done twice")


def report_table(report: Report, color: bool = False) -> str:
    """One line per policy, then what the columns mean and how each policy was modelled."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    for title in (report.unit, *_COLUMNS):
        table.add_column(title, justify="right", no_wrap=True)
    for outcome in report.outcomes:
        table.add_row(outcome.name, *_cells(outcome))
    sink = StringIO()
    width = Console(width=_UNBROKEN).measure(table).maximum
    console = Console(file=sink, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(table)
    rows = "".join(f"{line.rstrip()}\n" for line in sink.getvalue().splitlines())
    return f"{_title(report)}\n{rows}\n{_legend(report)}"


def _title(report: Report) -> str:
    about = f"; {report.about}" if report.about else ""
    return (
        f"{report.job}: {plural(report.workers, 'worker')}, {plural(report.gpus, 'GPU')}, "
        f"{report.hours:.4g} h of {report.trace}{about}\n"
    )


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if outcome.average is None or outcome.share is None or outcome.gpu_hours_lost is None:
        return ("cannot run", *("-" for _ in _COLUMNS))
    return (
        f"{outcome.average:,.4g}" if outcome.average < 1000 else f"{outcome.average:,.0f}",
        percent(outcome.share),
        f"{round(outcome.gpu_hours_lost, 1) + 0.0:,.1f}",
        f"{outcome.still:.2f}",
        f"{outcome.iterations:,.0f}",
        f"{outcome.redone:,.1f}",
    )


def _legend(report: Report) -> str:
    total = report.gpus * report.hours
    lines = [
        f"100 % is our plan without failures: {report.reference:,.4g} {report.unit}.",
        f"GPU-hours lost: what is missing to 100 %, of {total:,.1f} GPU-hours in all; "
        f"machines of the job were down for {report.gpu_hours_down:,.1f}.",
        "Hours still: pauses, and times when the job could not run. Done twice: iterations that were lost.",
    ]
    if any(outcome.share is not None and outcome.share > _ABOVE for outcome in report.outcomes):
        lines.append(
            "More than 100 %: a policy that cuts the model anew can have more even stages than the job."
        )
    lines.append("")
    width = max(len(outcome.name) for outcome in report.outcomes)
    lines += [f"{outcome.name:<{width}}  {outcome.note}" for outcome in report.outcomes]
    return "".join(f"{line}\n" for line in lines)
