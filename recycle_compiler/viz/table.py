"""Table of a bundle's plans and their costs."""

from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from typing import Protocol

from recycle_compiler.ir.groups import AnyLayout, GroupedLayout
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import Layout
from recycle_compiler.ir.units import percent, time_text

_WHOLE_VECTOR = 8
"""Up to this many stages, failures are listed for every stage."""

_UNBROKEN = 10_000
"""A width at which rich breaks no line."""


class TableRow(Protocol):
    """Figures of a row of the table; times in ticks."""

    @property
    def failures(self) -> int: ...
    @property
    def failed_per_stage(self) -> tuple[int, ...]: ...
    @property
    def period(self) -> int: ...
    @property
    def lower_bound(self) -> int: ...
    @property
    def gap(self) -> float: ...
    @property
    def status(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def against_1f1b(self) -> float: ...
    @property
    def cut_short(self) -> bool: ...
    @property
    def layout(self) -> AnyLayout | None: ...
    @property
    def split(self) -> int: ...
    @property
    def bound_over_cuts(self) -> int: ...


def summary_table(job: JobSpec, rows: Sequence[TableRow], color: bool) -> str:
    """One line per plan; periods in the unit of the job."""
    # Loaded only where the table is wanted.
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    in_layers = any(row.layout is not None for row in rows)
    where = "layers x workers" if in_layers else "failed per stage"
    for title in ("failures", where, f"period ({job.unit})", "bound", "gap", "status"):
        table.add_column(title, justify="left" if title in (where, "status") else "right", no_wrap=True)
    table.add_column("vs 1F1B fault-free", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.failures),
            _where(row, job.cut),
            time_text(job, row.period),
            time_text(job, row.bound_over_cuts if in_layers else row.lower_bound),
            percent(row.gap),
            f"{row.status}, cut short" if row.cut_short else row.status,
            f"{row.against_1f1b:.3f}x",
            f"{row.seconds:.2f}",
        )
    sink = StringIO()
    width = Console(width=_UNBROKEN).measure(table).maximum
    console = Console(file=sink, width=width, force_terminal=color, no_color=not color, highlight=False)
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in sink.getvalue().splitlines())


def _where(row: TableRow, own_cut: tuple[int, ...]) -> str:
    if row.layout is None:
        return per_stage_text(row.failed_per_stage)
    return layout_cell(row.layout, own_cut) + (", in halves" if row.split == 2 else "")


def layout_cell(layout: AnyLayout, own_cut: tuple[int, ...]) -> str:
    """As `stages_text`; the own cut is called that."""
    if isinstance(layout, GroupedLayout):
        groups = zip(layout.groups, layout.shares, strict=True)
        return " + ".join(f"{stages_text(group)} @{share}" for group, share in groups)
    text = stages_text(layout)
    return f"{text} (own cut)" if layout.layers == own_cut else text


def stages_text(layout: Layout) -> str:
    """`8x4 7x4 7x3 6x3`, equal neighbours once: `8x4 7x4*6`."""
    stages = [f"{layers}x{workers}" for layers, workers in zip(layout.layers, layout.workers, strict=True)]
    runs = [(text, len(list(same))) for text, same in groupby(stages)]
    return " ".join(text if count == 1 else f"{text}*{count}" for text, count in runs)


def per_stage_text(per_stage: tuple[int, ...]) -> str:
    """`0 0 1 0`; on many stages only those with failures: `2:1 17:3`."""
    if len(per_stage) <= _WHOLE_VECTOR:
        return " ".join(map(str, per_stage))
    return " ".join(f"{stage}:{count}" for stage, count in enumerate(per_stage) if count) or "-"
