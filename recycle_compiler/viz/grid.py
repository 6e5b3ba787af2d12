"""A plan as text, one row per worker and time to the right.

    worker  0              5              10
    0:0     F0 F1 F2 F3 I0 F4 I1 W0 ...
    0:1     .  F0 F1 F2 ...

How much of each op can be seen depends on the width. Under another cut than the job starts with, rows are
sorted by stage, cells of the grid without a worker are left out, and micro-batches of all pipelines are
counted through.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from io import StringIO
from itertools import groupby
from math import gcd
from textwrap import wrap

from recycle_compiler.ir.failure import Worker, worker_at
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.ops import MICROBATCH_KINDS, Op, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import percent, short, time_text, unit_name
from recycle_compiler.viz.heading import heading, no_plan_of_any_cut

BATCH = "batch "
"""Heads the second line of a worker when kind and micro-batch stand below each other."""
_LEAST_COLUMNS = 20
_NICE_STEPS = (1, 2, 5)
IDLE, FAILED, MIXED = ".", "x", "*"
_STYLES = {
    OpKind.F: "blue",
    OpKind.B: "green",
    OpKind.I: "green",
    OpKind.W: "magenta",
    OpKind.R: "yellow",
    OpKind.O: "yellow",
    OpKind.G: "yellow",
    OpKind.SF: "cyan",
    OpKind.SB: "cyan",
    OpKind.SI: "cyan",
    OpKind.SW: "cyan",
}
KIND_WORDS = {
    OpKind.F: "forward",
    OpKind.B: "backward",
    OpKind.I: "input gradient",
    OpKind.W: "weight gradient",
    OpKind.R: "reduction",
    OpKind.O: "optimizer",
    OpKind.G: "gathering of weights",
    OpKind.SF: "serves a forward",
    OpKind.SB: "serves a backward",
    OpKind.SI: "serves an input gradient",
    OpKind.SW: "weight gradient of what was served",
}


@dataclass(slots=True)
class GridLine:
    """One line that is drawn on from left to right; styles are names that `rich` knows."""

    characters: list[str] = field(default_factory=list[str])
    styles: list[str] = field(default_factory=list[str])

    def put(self, column: int, text: str, style: str = "") -> None:
        """Write text at a column, over what is there."""
        missing = column + len(text) - len(self.characters)
        if missing > 0:
            self.characters += [" "] * missing
            self.styles += [""] * missing
        self.characters[column : column + len(text)] = text
        self.styles[column : column + len(text)] = [style] * len(text)

    def is_free(self, column: int, filler: str) -> bool:
        """True if nothing but filler stands at this column."""
        return column >= len(self.characters) or self.characters[column] in (" ", filler)

    def runs(self) -> Iterable[tuple[str, str]]:
        """Stretches of one style: (text, style)."""
        marks = zip(self.characters, self.styles, strict=True)
        for style, run in groupby(marks, key=lambda mark: mark[1]):
            yield "".join(character for character, _ in run), style

    def __str__(self) -> str:
        return "".join(self.characters).rstrip()


def line(text: str, style: str = "") -> GridLine:
    """A line that says one thing."""
    result = GridLine()
    result.put(0, text, style)
    return result


def render_grid(lines: Sequence[GridLine], color: bool) -> str:
    """All lines as text, with escape codes when colour is wanted."""
    if not color:
        return "".join(f"{row}\n" for row in lines)
    # Only a terminal pays for loading rich.
    from rich.console import Console
    from rich.text import Text

    sink = StringIO()
    console = Console(
        file=sink, force_terminal=True, color_system="standard", width=10_000, highlight=False, no_color=False
    )
    for row in lines:
        console.print(Text.assemble(*row.runs()), soft_wrap=True)
    return sink.getvalue()


@dataclass(frozen=True, slots=True)
class Box:
    """One op as it is drawn."""

    op: Op
    start: int
    end: int
    is_guest: bool
    """True if the micro-batch belongs to another pipeline than the worker."""
    chunk: int | None = None
    """Chunk of the op, if its number is not that of its worker's stage."""

    @property
    def label(self) -> str:
        if self.op.kind not in MICROBATCH_KINDS:
            return self.op.kind.name
        home = f"{self.op.pipeline}." if self.is_guest else ""
        return (
            f"{self.op.kind.name}{home}{self.op.microbatch}{'' if self.chunk is None else f'c{self.chunk}'}"
        )


class Detail(Enum):
    """Detail in which an op is drawn, most first."""

    CELLS = "a cell for each unit of time, with a label"
    STACKED = "kind, micro-batch and home pipeline on lines below each other"
    BOXES = "to scale, labelled where there is room"
    SHARES = "it shows what takes more than half of its time"


@dataclass(frozen=True, slots=True)
class GridColumns:
    """Columns that a time stands for."""

    detail: Detail
    margin: int
    """Columns left of time 0."""
    columns: int
    ticks: int
    """From time 0 to the right end of the last column."""
    pitch: int
    """Columns from one idle mark to the next."""

    def column(self, ticks: int) -> int:
        return self.margin + ticks * self.columns // self.ticks

    def nice_step(self, ticks_per_unit: int) -> Fraction:
        """Units between two numbers of the ruler: 1, 2, 5, 10, ... or 0.5, 0.2, 0.1, ..."""
        spacing = max(8, 2 * self.pitch + 1)
        least = Fraction(self.ticks * spacing, self.columns * ticks_per_unit)
        power = Fraction(1)
        while power > least:
            power /= 10
        while power * _NICE_STEPS[-1] < least:
            power *= 10
        return next(power * factor for factor in _NICE_STEPS if power * factor >= least)


def boxes_by_worker(schedule: Schedule) -> dict[Worker, list[Box]]:
    """Boxes that each live worker runs, in order; ops that take no time are not drawn."""
    job, failed = schedule.job, set(schedule.failed)
    everyone = (Worker(pipeline, stage) for pipeline in range(job.pipelines) for stage in range(job.stages))
    boxes: dict[Worker, list[Box]] = {worker: [] for worker in everyone if worker not in failed}
    # Where every stage has one chunk, in order, its number says nothing new.
    held = job.held if job.groups else tuple((stage,) for stage in range(job.stages))
    for op, start, end in schedule.rows():
        if end > start:
            worker = worker_at(op.worker, job.pipelines)
            if job.is_recut:
                op = _numbered(op, job)
            guest = not job.is_recut and op.kind in MICROBATCH_KINDS and op.pipeline != worker.pipeline
            chunk = None if held[worker.stage] == (op.chunk,) else op.chunk
            boxes[worker].append(Box(op, start, end, guest, chunk))
    return boxes


def _numbered(op: Op, job: JobSpec) -> Op:
    """With the number that its micro-batch has among those of all pipelines, the same under every cut."""
    if op.kind not in MICROBATCH_KINDS:
        return op
    return op._replace(microbatch=op.pipeline * job.microbatches + op.microbatch)


def choose_layout(job: JobSpec, boxes: Sequence[Box], width: int) -> GridColumns:
    """The layout with most detail that fits."""
    margin = max(len("worker"), len(f"{job.pipelines - 1}:{job.stages - 1}")) + 2
    horizon = max((box.end for box in boxes), default=1)
    unit = gcd(horizon, *(box.start for box in boxes), *(box.end for box in boxes))
    units = horizon // unit
    cell = max((len(box.label) for box in boxes), default=1) + 1
    if margin + units * cell <= width:
        return GridColumns(Detail.CELLS, margin, units * cell, horizon, cell)
    numbers = job.pipelines * job.microbatches if job.is_recut else max(job.microbatches, job.pipelines)
    digits = len(str(numbers - 1))
    if margin + len(BATCH) + units * digits <= width:
        return GridColumns(Detail.STACKED, margin + len(BATCH), units * digits, horizon, digits)
    room = max(width - margin, _LEAST_COLUMNS)
    if units <= room:
        # Whole columns per unit keep equal ops equally wide.
        return GridColumns(Detail.BOXES, margin, units * (room // units), horizon, 1)
    shortest = min(box.end - box.start for box in boxes if box.op.kind in MICROBATCH_KINDS)
    if shortest * room >= horizon:
        return GridColumns(Detail.BOXES, margin, room, horizon, 1)
    return _shares(margin, horizon, room, job.ticks_per_unit if job.unit == "slot" else 1)


def _shares(margin: int, horizon: int, room: int, grain: int) -> GridColumns:
    """Columns of equal length, in whole slots where the job counts in slots."""
    per_column = -(-horizon // (room * grain)) * grain
    columns = -(-horizon // per_column)
    return GridColumns(Detail.SHARES, margin, columns, columns * per_column, 1)


def schedule_grid(schedule: Schedule, width: int, color: bool = False) -> str:
    """The picture of a plan, in `width` columns if that is not too narrow to draw in."""
    boxes = boxes_by_worker(schedule)
    drawn = [box for row in boxes.values() for box in row]
    layout = choose_layout(schedule.job, drawn, width)
    lines = [*_wrapped(_header(schedule), width), line(""), _ruler(schedule, layout)]
    for number, workers in enumerate(row_groups(schedule)):
        if number:
            lines.append(line(""))
        for worker in workers:
            lines += _worker_lines(worker, boxes.get(worker), layout)
    lines += [line(""), *_wrapped(((text, "") for text in _legend(schedule, drawn, layout)), width)]
    return render_grid(lines, color)


def row_groups(schedule: Schedule) -> Iterator[list[Worker]]:
    """The rows of each pipeline, or of each stage where stages differ in their workers."""
    job = schedule.job
    if not job.is_recut:
        for pipeline in range(job.pipelines):
            yield [Worker(pipeline, stage) for stage in range(job.stages)]
        return
    absent = set(schedule.failed)
    for stage in range(job.stages):
        row = (Worker(rank, stage) for rank in range(job.pipelines))
        yield [worker for worker in row if worker not in absent]


def _wrapped(texts: Iterable[tuple[str, str]], width: int) -> Iterator[GridLine]:
    """Each text with its style, broken between words where it does not fit."""
    for text, style in texts:
        for piece in wrap(
            text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ):
            yield line(piece, style)


def _header(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """Header lines about the plan and its times, each with its style."""
    job, claims = schedule.job, schedule.claims
    yield from ((text, "bold") for text in heading(schedule))
    proof = f"optimal ({claims.reason})"
    if claims.status != "optimal":
        bound = f"lower bound {time_text(job, claims.lower_bound)} ({claims.reason})"
        proof = f"at most {percent(claims.gap)} above optimal: {bound}"
    if claims.cut_short:
        proof += ", cut short by the time limit"
    makespan = f"makespan {time_text(job, claims.makespan)} {unit_name(job)}"
    techniques = " + ".join(job.techniques.names) or "no techniques"
    yield f"period {time_text(job, claims.period)} {unit_name(job)}, {proof}; {makespan}; {techniques}", ""
    if claims.bound_over_cuts:
        bound = f"{time_text(job, claims.bound_over_cuts)} {unit_name(job)}"
        yield f"{no_plan_of_any_cut(schedule)} is faster than {bound}", ""


def _ruler(schedule: Schedule, layout: GridColumns) -> GridLine:
    ruler = line("worker")
    per_unit = schedule.job.ticks_per_unit
    step, mark = layout.nice_step(per_unit), Fraction(0)
    while mark * per_unit < layout.ticks:
        ruler.put(layout.column(int(mark * per_unit)), short(mark), "dim")
        mark += step
    return ruler


def _worker_lines(worker: Worker, boxes: Sequence[Box] | None, layout: GridColumns) -> Iterator[GridLine]:
    first = line(str(worker))
    mark, style = (FAILED, "red") if boxes is None else (IDLE, "dim")
    for column in range(layout.margin, layout.margin + layout.columns, layout.pitch):
        first.put(column, mark, style)
    if boxes is None:
        yield first
    elif layout.detail is Detail.STACKED:
        yield from _stacked(first, boxes, layout)
    else:
        draw = _draw_share if layout.detail is Detail.SHARES else _draw_boxes
        draw(first, boxes, layout)
        yield first


def _draw_boxes(row: GridLine, boxes: Sequence[Box], layout: GridColumns) -> None:
    """Each op is its label and dashes to its end; a cell keeps a blank at its right."""
    gap = 1 if layout.detail is Detail.CELLS else 0
    for box in boxes:
        left, right = layout.column(box.start), layout.column(box.end)
        if left == right:
            # Thinner than a column: shown where nothing else is.
            if row.is_free(left, IDLE):
                row.put(left, box.op.kind.name, _style(box))
            continue
        room = right - left - gap
        text = box.label if len(box.label) <= room else box.op.kind.name
        fill = "-" if right - left > layout.pitch else " "
        row.put(left, text.ljust(room, fill) + " " * gap, _style(box))


def _draw_share(row: GridLine, boxes: Sequence[Box], layout: GridColumns) -> None:
    """Each column is what takes more than half of its time: a kind, several together, or idling."""
    per_column = layout.ticks // layout.columns
    shares: dict[int, dict[OpKind, int]] = {}
    for box in boxes:
        for column in range(box.start // per_column, -(-box.end // per_column)):
            part = min(box.end, (column + 1) * per_column) - max(box.start, column * per_column)
            share = shares.setdefault(column, {})
            share[box.op.kind] = share.get(box.op.kind, 0) + part
    for column, share in shares.items():
        kind = max(sorted(share), key=share.__getitem__)
        if 2 * share[kind] > per_column:
            row.put(layout.margin + column, kind.name, _STYLES[kind])
        elif 2 * sum(share.values()) > per_column:
            row.put(layout.margin + column, MIXED)


def _stacked(first: GridLine, boxes: Sequence[Box], layout: GridColumns) -> Iterator[GridLine]:
    """Kind, micro-batch and home pipeline of each op, below each other."""
    batch, home, head = GridLine(), GridLine(), layout.margin - len(BATCH)
    first.put(head, "op", "dim")
    batch.put(head, BATCH, "dim")
    home.put(head, "of", "dim")
    for box in boxes:
        left, right = layout.column(box.start), layout.column(box.end)
        fill = "-" if right - left > layout.pitch else " "
        first.put(left, box.op.kind.name.ljust(right - left, fill), _style(box))
        if box.op.kind in MICROBATCH_KINDS:
            batch.put(left, str(box.op.microbatch), _style(box))
        if box.is_guest:
            home.put(left, str(box.op.pipeline), _style(box))
    yield from (first, batch)
    if any(box.is_guest for box in boxes):
        yield home


def _legend(schedule: Schedule, drawn: Sequence[Box], layout: GridColumns) -> Iterator[str]:
    words = [f"{kind.name} {KIND_WORDS[kind]}" for kind in sorted({box.op.kind for box in drawn})]
    words.append(f"{IDLE} idle")
    if schedule.failed and not schedule.job.is_recut:
        words.append(f"{FAILED} failed")
    if layout.detail is Detail.SHARES:
        words.append(f"{MIXED} several kinds")
    yield ", ".join(words)
    guest = next((box for box in drawn if box.is_guest), None)
    if schedule.job.is_recut:
        units = schedule.job.pipelines * schedule.job.microbatches
        counted = "halves of micro-batches" if schedule.job.parts == 2 else "micro-batches"
        yield (
            "worker r:s is number r of those that hold stage s under this cut, not a worker of the job's own "
            f"grid; {counted} are counted from 0 to {units - 1}, over all pipelines of the job"
        )
    elif layout.detail is Detail.STACKED:
        yield "batch: the micro-batch" + ("; of: its pipeline, where not the worker's own" if guest else "")
    elif guest and layout.detail is not Detail.SHARES:
        op = guest.op
        yield (
            f"{guest.label}: micro-batch {op.microbatch} of pipeline {op.pipeline}, run by a peer; "
            "without a dot: of the worker's own pipeline"
        )
    if layout.detail in (Detail.BOXES, Detail.SHARES):
        scale = short(Fraction(layout.ticks, layout.columns * schedule.job.ticks_per_unit))
        how = layout.detail.value
        yield f"scaled to fit: one column is {scale} {unit_name(schedule.job)}; {how}"


def _style(box: Box) -> str:
    return _STYLES[box.op.kind] + (" bold underline" if box.is_guest else "")
