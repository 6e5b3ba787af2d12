"""Memory of a worker of each stage, kind by kind, as a table: in GiB, and in bytes for each parameter.

stage  parameters  weights   gradients  optimizer state  ...  all state     left   activations
0         1.73e9   3.22 (2)   6.45 (4)       1.21 (0.75)        12.9 (8)  65.6      41.3
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.state import Held, held_by_stage

_GIB = 1 << 30


def memory_lines(job: JobSpec, peaks: Sequence[int] = ()) -> Iterator[str]:
    """The table of a job that says how many parameters it has; nothing for any other.

    `peaks` are the most activations that a worker of each stage holds under a plan.
    """
    stages = held_by_stage(job)
    if not stages:
        return
    names = tuple(stages[0].parts)
    more = ("left", "activations") if peaks else ("left",)
    rows: list[tuple[str, ...]] = [("stage", "parameters", *names, "together", *more)]
    shown = [_cells(held, peaks[stage] if peaks else None) for stage, held in enumerate(stages)]
    for cells, group in groupby(enumerate(shown), key=lambda pair: pair[1]):
        numbers = [stage for stage, _ in group]
        first, last = numbers[0], numbers[-1]
        rows.append((str(first) if first == last else f"{first}-{last}", *cells))
    yield "memory of a worker of each stage, in GiB (in bytes for each parameter)"
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


def _cells(held: Held, peak: int | None) -> tuple[str, ...]:
    def amount(size: int) -> str:
        each = size / held.parameters if held.parameters else 0.0
        return f"{size / _GIB:.2f} ({each:.2f})"

    left = "unlimited" if held.activations is None else f"{held.activations / _GIB:.2f}"
    peaks = () if peak is None else (f"{peak / _GIB:.2f}",)
    return (f"{held.parameters:.3e}", *map(amount, held.parts.values()), amount(held.total), left, *peaks)
