"""A plan as text, one row per worker and time to the right.

    worker  0              5              10
    0:0     F0 F1 F2 F3 I0 F4 I1 W0 ...
    0:1     .  F0 F1 F2 ...

How much of each op can be seen depends on the width; see layout.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from textwrap import wrap

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import MICROBATCH_KINDS, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import percent, plural, short, time_text, unit_name
from recycle_compiler.viz.canvas import Line, line, render
from recycle_compiler.viz.layout import BATCH, Box, Detail, Layout, boxes_by_worker, choose_layout

IDLE, FAILED, MIXED = ".", "x", "*"
_LISTED = 12
"""Failed workers named in the header; the picture shows them all."""
_STYLES = {
    OpKind.F: "blue",
    OpKind.B: "green",
    OpKind.I: "green",
    OpKind.W: "magenta",
    OpKind.R: "yellow",
    OpKind.O: "yellow",
}
_WORDS = {
    OpKind.F: "forward",
    OpKind.B: "backward",
    OpKind.I: "input gradient",
    OpKind.W: "weight gradient",
    OpKind.R: "reduction",
    OpKind.O: "optimizer",
}


def grid(schedule: Schedule, width: int, color: bool = False) -> str:
    """The picture of a plan, in `width` columns if that is not too narrow to draw in."""
    boxes = boxes_by_worker(schedule)
    drawn = [box for row in boxes.values() for box in row]
    layout = choose_layout(schedule.job, drawn, width)
    lines = [*_wrapped(_header(schedule), width), line(""), _ruler(schedule, layout)]
    for pipeline in range(schedule.job.pipelines):
        if pipeline:
            lines.append(line(""))
        for stage in range(schedule.job.stages):
            worker = Worker(pipeline, stage)
            lines += _worker_lines(worker, boxes.get(worker), layout)
    lines += [line(""), *_wrapped(((text, "") for text in _legend(schedule, drawn, layout)), width)]
    return render(lines, color)


def _wrapped(texts: Iterable[tuple[str, str]], width: int) -> Iterator[Line]:
    """Each text with its style, broken between words where it does not fit."""
    for text, style in texts:
        for piece in wrap(
            text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ):
            yield line(piece, style)


def _header(schedule: Schedule) -> Iterator[tuple[str, str]]:
    """What the plan is and takes, each with its style."""
    job, claims = schedule.job, schedule.claims
    names = [str(worker) for worker in schedule.failed[:_LISTED]]
    if len(schedule.failed) > _LISTED:
        names.append(f"and {len(schedule.failed) - _LISTED} more")
    shape = ", ".join(
        (
            plural(job.stages, "stage"),
            plural(job.pipelines, "pipeline"),
            plural(job.microbatches, "micro-batch"),
        )
    )
    yield f"{job.name}: {shape} each; failed: {', '.join(names) or 'nobody'}", "bold"
    proof = f"optimal ({claims.reason})"
    if claims.status != "optimal":
        bound = f"lower bound {time_text(job, claims.lower_bound)} ({claims.reason})"
        proof = f"at most {percent(claims.gap)} above optimal: {bound}"
    if claims.cut_short:
        proof += ", cut short by the time limit"
    makespan = f"makespan {time_text(job, claims.makespan)} {unit_name(job)}"
    techniques = " + ".join(job.techniques.names) or "no techniques"
    yield f"period {time_text(job, claims.period)} {unit_name(job)}, {proof}; {makespan}; {techniques}", ""


def _ruler(schedule: Schedule, layout: Layout) -> Line:
    ruler = line("worker")
    per_unit = schedule.job.ticks_per_unit
    step, mark = layout.nice_step(per_unit), Fraction(0)
    while mark * per_unit < layout.ticks:
        ruler.put(layout.column(int(mark * per_unit)), short(mark), "dim")
        mark += step
    return ruler


def _worker_lines(worker: Worker, boxes: Sequence[Box] | None, layout: Layout) -> Iterator[Line]:
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


def _draw_boxes(row: Line, boxes: Sequence[Box], layout: Layout) -> None:
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


def _draw_share(row: Line, boxes: Sequence[Box], layout: Layout) -> None:
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


def _stacked(first: Line, boxes: Sequence[Box], layout: Layout) -> Iterator[Line]:
    """Kind, micro-batch and home pipeline of each op, below each other."""
    batch, home, head = Line(), Line(), layout.margin - len(BATCH)
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


def _legend(schedule: Schedule, drawn: Sequence[Box], layout: Layout) -> Iterator[str]:
    words = [f"{kind.name} {_WORDS[kind]}" for kind in sorted({box.op.kind for box in drawn})]
    words.append(f"{IDLE} idle")
    if schedule.failed:
        words.append(f"{FAILED} failed")
    if layout.detail is Detail.SHARES:
        words.append(f"{MIXED} several kinds")
    yield ", ".join(words)
    guest = next((box for box in drawn if box.is_guest), None)
    if layout.detail is Detail.STACKED:
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
