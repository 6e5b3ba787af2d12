"""A plan as an SVG picture: a row for every worker, time to the right.

Kinds differ in lightness as well as in hue, so they can be distinguished in print and by those who see fewer
colours. Micro-batches of other pipelines have a frame, failed workers are hatched, and two measures below
the rows show how long the longest stage is busy and what no plan can go below. One file serves light and
dark pages. Large plans are drawn as one shape for every kind and worker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from textwrap import wrap
from typing import Any, Literal, cast

import numpy as np

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.ops import SERVICE, OpKind
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.units import memory_text, percent, short, time_text, unit_name
from recycle_compiler.viz.grid import KIND_WORDS, Box, boxes_by_worker, row_groups
from recycle_compiler.viz.heading import heading, no_plan

Theme = Literal["auto", "light", "dark"]
THEMES: tuple[Theme, ...] = ("auto", "light", "dark")
PALETTES = {
    "light": {
        "page": "#ffffff", "ink": "#1d232b", "quiet": "#5c6670", "line": "#d7dce2", "row": "#f3f5f7",
        "failed": "#b3342f", "frame": "#111418", "memory": "#8a949e",
        "F": "#9ccbee", "B": "#2f8f6b", "I": "#2f8f6b", "W": "#6a4a8f", "R": "#f0c04a", "O": "#e3a52c",
        "G": "#f0c04a", "SF": "#cfe3f2", "SB": "#b5d6c8", "SI": "#b5d6c8", "SW": "#c9bdd8",
    },
    "dark": {
        "page": "#14181d", "ink": "#e6eaee", "quiet": "#9aa5b1", "line": "#2c343d", "row": "#1d232a",
        "failed": "#ff7a70", "frame": "#ffffff", "memory": "#6d7883",
        "F": "#8cc4ee", "B": "#2a8a66", "I": "#2a8a66", "W": "#7d5ba6", "R": "#edc050", "O": "#dda238",
        "G": "#edc050", "SF": "#c3def3", "SB": "#a3cdbb", "SI": "#a3cdbb", "SW": "#c6b5dc",
    },
}  # fmt: skip
"""Forward is light, the input gradient darker, the weight gradient darkest; services are pale."""
LIGHT_KINDS = ("F", "R", "O", "G", "SF", "SB", "SI", "SW")
"""Kinds whose labels are dark."""
_SERVED = {service: work for work, service in SERVICE.items()}
WIDTH = 1200
LEAST_WIDTH, MOST_WIDTH = 300, 100_000
"""Narrower ones have no room for a word beside the rows; wider ones are nothing to look at."""
_ROW, _GAP, _BETWEEN = 22.0, 2.0, 8.0
_MEMORY = 16.0
_TOP, _RIGHT = 14.0, 16.0
_LETTER = 6.4
"""Pixels of a letter of a label."""
_TITLE_LETTER = 7.2
"""Of the title, at most on average."""
_TITLE_LINE, _LEGEND_LINE = 18.0, 20.0
_MOST_BOXES = 4_000
"""Ops that are drawn one by one, each with a text that appears under the mouse."""
_NICE_STEPS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class PixelScale:
    """Pixels of a time."""

    left: float
    width: float
    ticks: int

    def x(self, ticks: float) -> float:
        return self.left + self.width * ticks / self.ticks


def picture(schedule: Schedule, *, width: int = WIDTH, memory: bool = False, theme: Theme = "auto") -> str:
    """The picture of a plan, `width` pixels wide; on request with the memory that each worker holds."""
    if not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise ValueError(f"a picture is {LEAST_WIDTH} to {MOST_WIDTH} pixels wide, got {width}")
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["px"] = _px
    source = files("recycle_compiler.viz").joinpath("picture.svg.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(_values(schedule, width, memory, theme)) + "\n"


def _values(schedule: Schedule, width: int, memory: bool, theme: Theme) -> dict[str, Any]:
    job = schedule.job
    boxes = boxes_by_worker(schedule)
    drawn = [box for row in boxes.values() for box in row]
    labels = [str(worker) for group in row_groups(schedule) for worker in group]
    left = 12.0 + _LETTER * max(map(len, [*labels, "worker"])) + 8.0
    horizon = max((box.end for box in drawn), default=1)
    scale = PixelScale(left, width - left - _RIGHT, horizon)
    titles = [*heading(schedule), proof_text(schedule)]
    letters = int((width - 24.0) / _TITLE_LETTER)
    title = [line for text in titles for line in wrap(text, letters, subsequent_indent="\u2003")]
    top = _TOP + _TITLE_LINE * len(title) + 26.0
    curves = _memory_curves(schedule) if memory else {}
    rows = list(_rows(schedule, boxes, scale, top, curves, one_by_one=len(drawn) <= _MOST_BOXES))
    bottom = rows[-1]["y"] + rows[-1]["height"] if rows else top
    measures = list(_measures(schedule, scale, bottom + 18.0))
    kinds = sorted({box.op.kind for box in drawn})
    legend_top = bottom + 18.0 + 22.0 * len(measures) + 12.0
    legend = list(_legend(schedule, kinds, drawn, memory=memory, left=left, top=legend_top, width=width))
    return {
        "job": job.name,
        "width": width,
        "height": legend[-1]["y"] + 26.0 if legend else legend_top,
        "theme": theme,
        "title": title,
        "rows": rows,
        "top": top,
        "bottom": bottom,
        "left": scale.left,
        "right": scale.left + scale.width,
        "ruler": list(_ruler(schedule, scale)),
        "measures": measures,
        "legend": legend,
        "kinds": [kind.name for kind in kinds],
        "palettes": PALETTES,
        "light": LIGHT_KINDS,
    }


def _rows(
    schedule: Schedule,
    boxes: dict[Worker, list[Box]],
    scale: PixelScale,
    top: float,
    curves: dict[Worker, "_Curve"],
    *,
    one_by_one: bool,
) -> Iterator[dict[str, Any]]:
    y = top
    for number, group in enumerate(row_groups(schedule)):
        y += _BETWEEN if number else 0.0
        for worker in group:
            own = boxes.get(worker)
            curve = curves.get(worker)
            row: dict[str, Any] = {
                "worker": str(worker),
                "y": y,
                "height": _ROW + (_MEMORY if curves else 0.0),
                "bar": _ROW,
                "failed": own is None,
                "boxes": [],
                "shapes": [],
                "memory": None if curve is None else _area(curve, scale, y + _ROW, schedule),
            }
            if own is not None and one_by_one:
                row["boxes"] = [_box(schedule, box, scale) for box in own]
            elif own is not None:
                row["shapes"] = _shapes(own, scale, y)
            yield row
            y += row["height"] + _GAP


def _box(schedule: Schedule, box: Box, scale: PixelScale) -> dict[str, Any]:
    job = schedule.job
    x, end = scale.x(box.start), scale.x(box.end)
    label = box.label
    room = int((end - x - 2.0) / _LETTER)
    short_label = box.op.kind.name if len(label) > room else label
    return {
        "kind": box.op.kind.name,
        "x": x,
        "width": end - x,
        "guest": box.is_guest,
        "label": short_label if room >= len(short_label) else "",
        "title": f"{label} {KIND_WORDS[box.op.kind]}, {time_text(job, box.start)} to "
        f"{time_text(job, box.end)} {unit_name(job)}",
    }


def _shapes(boxes: Sequence[Box], scale: PixelScale, y: float) -> list[dict[str, Any]]:
    """One for each kind; those run for another pipeline are framed in one more."""
    paths: dict[tuple[str, bool], list[str]] = {}
    for box in boxes:
        x, end = scale.x(box.start), scale.x(box.end)
        piece = f"M{_px(x)} {_px(y)}h{_px(end - x)}v{_px(_ROW)}H{_px(x)}z"
        paths.setdefault((box.op.kind.name, box.is_guest), []).append(piece)
    return [
        {"kind": kind, "guest": guest, "path": "".join(pieces)}
        for (kind, guest), pieces in sorted(paths.items())
    ]


def _ruler(schedule: Schedule, scale: PixelScale) -> Iterator[dict[str, Any]]:
    per_unit = schedule.job.ticks_per_unit
    units = Fraction(scale.ticks, per_unit)
    least, power = units * 70 / Fraction(int(scale.width)), Fraction(1)
    while power > least:
        power /= 10
    while power * _NICE_STEPS[-1] < least:
        power *= 10
    step = next(power * factor for factor in (*_NICE_STEPS, 10) if power * factor >= least)
    mark = Fraction(0)
    while mark <= units:
        yield {"x": scale.x(float(mark * per_unit)), "text": short(mark)}
        mark += step


def _measures(schedule: Schedule, scale: PixelScale, y: float) -> Iterator[dict[str, Any]]:
    """Two lengths that begin with the first op of the stage that is busy longest."""
    job, claims = schedule.job, schedule.claims
    start = busiest_start(schedule)
    rows = [("period", claims.period)]
    if claims.status != "optimal":
        rows.append(("bound", claims.lower_bound))
    for number, (name, ticks) in enumerate(rows):
        text = f"{name} {time_text(job, ticks)} {unit_name(job)}"
        if name == "period" and claims.status == "optimal":
            text += f", and {no_plan(schedule)} is faster"
        elif name == "bound":
            text += f": {no_plan(schedule)} is faster"
        yield {
            "name": name,
            "y": y + 22.0 * number,
            "x": scale.x(start),
            "end": min(scale.x(start + ticks), scale.left + scale.width),
            "text": text,
            # It begins with its measure, or further left where it would not fit.
            "text_x": max(12.0, min(scale.x(start) + 6.0, scale.left + scale.width - _LETTER * len(text))),
        }


def busiest_start(schedule: Schedule) -> int:
    """Start of the window that is as long as the period."""
    job = schedule.job
    compute = schedule.is_compute
    if not job.techniques.stagger:
        return int(schedule.start[compute].min())
    stage = schedule.ops.worker // job.pipelines
    first = np.full(job.stages, np.iinfo(np.int64).max)
    last = np.zeros(job.stages, dtype=np.int64)
    np.minimum.at(first, stage[compute], schedule.start[compute])
    np.maximum.at(last, stage, schedule.end)
    return int(first[int(np.argmax(last - first))])


@dataclass(frozen=True, slots=True)
class _Curve:
    """Memory that a worker holds from each time on."""

    times: tuple[int, ...]
    held: tuple[int, ...]


def _memory_curves(schedule: Schedule) -> dict[Worker, _Curve]:
    """F takes memory as it starts; the others give it back as they end."""
    job = schedule.job
    changes: dict[Worker, dict[int, int]] = {}
    for worker, rows in schedule.worker_starts():
        own = changes.setdefault(worker, {})
        columns = (schedule.ops.kind, schedule.ops.chunk, schedule.start, schedule.end)
        kinds, chunks, starts, ends = (cast(list[int], column[rows].tolist()) for column in columns)
        for kind, chunk, start, end in zip(kinds, chunks, starts, ends, strict=True):
            activation, kept = job.activation[chunk], job.kept_for_weight[chunk]
            at, amount = {
                OpKind.F: (start, activation),
                OpKind.B: (end, -activation),
                OpKind.I: (end, kept - activation),
                OpKind.W: (end, -kept),
            }.get(_SERVED.get(OpKind(kind), OpKind(kind)), (start, 0))
            own[at] = own.get(at, 0) + amount
    curves: dict[Worker, _Curve] = {}
    for worker, own in changes.items():
        times = tuple(sorted(own))
        curves[worker] = _Curve(times, tuple(np.cumsum([own[time] for time in times]).tolist()))
    return curves


def _area(curve: _Curve, scale: PixelScale, y: float, schedule: Schedule) -> dict[str, Any]:
    """Steps up and down under the row, as high as the most that any worker holds or may hold."""
    job = schedule.job
    limits = [limit for limit in job.capacity if limit is not None]
    peaks = [amount for _, _, amount in schedule.peak_memory()]
    most = max([*limits, *peaks, 1])
    base = y + _MEMORY - 1.0
    height = _MEMORY - 3.0

    def at(amount: float) -> float:
        return base - height * amount / most

    path = f"M{_px(scale.x(curve.times[0]))} {_px(base)}" if curve.times else ""
    for time, held in zip(curve.times, curve.held, strict=True):
        path += f"H{_px(scale.x(time))}V{_px(at(held))}"
    peak = max(curve.held, default=0)
    return {"path": f"{path}V{_px(base)}z", "base": base, "title": f"at most {memory_text(job, peak)}"}


def proof_text(schedule: Schedule) -> str:
    """The period, and how good it is known to be."""
    job, claims = schedule.job, schedule.claims
    proof = "proven optimal"
    if claims.status != "optimal":
        proof = f"at most {percent(claims.gap)} above the best possible"
    return f"period {time_text(job, claims.period)} {unit_name(job)}, {proof}"


def _legend(
    schedule: Schedule,
    kinds: Sequence[OpKind],
    drawn: Sequence[Box],
    *,
    memory: bool,
    left: float,
    top: float,
    width: float,
) -> Iterator[dict[str, Any]]:
    """In as many lines as they need."""
    x, y = left, top
    entries = [(kind.name, f"{kind.name} {KIND_WORDS[kind]}") for kind in kinds]
    if any(box.is_guest for box in drawn):
        entries.append(("guest", "re-routed: of another pipeline"))
    if schedule.failed and not schedule.job.is_recut:
        entries.append(("failed", "failed"))
    if memory:
        entries.append(("memory", "activations held"))
    for name, text in entries:
        length = 18.0 + _LETTER * len(text)
        if x > left and x + length > width:
            x, y = left, y + _LEGEND_LINE
        yield {"x": x, "y": y, "name": name, "text": text}
        x += length + 16.0


def _px(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
