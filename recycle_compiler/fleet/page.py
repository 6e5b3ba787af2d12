"""A simulation as one HTML page: it opens from disk and loads nothing."""

from collections.abc import Callable, Sequence
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from recycle_compiler.fleet.report import Outcome, Point, Report, counted, figure, span_text
from recycle_compiler.ir.units import percent
from recycle_compiler.version import __version__

MOST_STEPS = 450
"""Of about two pixels each: shorter ones would be drawn over each other."""
COLOURS = (
    ("#0072b2", "#3aa0e0"), ("#d55e00", "#f07a2a"), ("#00875f", "#1fbf90"), ("#b8608f", "#e08fbc"),
    ("#a86f00", "#f0b030"), ("#2f86bd", "#7cc8f5"), ("#7a5195", "#b08cd0"), ("#8c6d31", "#c8a468"),
    ("#666666", "#a0a8b0"), ("#7d7d00", "#c8c840"), ("#9c3d3d", "#e58a8a"), ("#3d6b3d", "#8fce8f"),
)  # fmt: skip
"""On a light ground and on a dark one, ours first."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""So that curves are not told apart by colour alone; ours is unbroken and thicker."""
_LEFT, _WIDTH = 70.0, 860.0
_ABOVE = 1.0005
"""A share that shows as more than 100 %."""
_MOST_EVENTS = 500
"""In the log."""


class Frame(NamedTuple):
    """Where a chart lies, in pixels, and what its sides mean."""

    left: float
    top: float
    width: float
    height: float
    hours: float
    most: float

    def x(self, hours: float) -> float:
        return self.left + self.width * hours / self.hours

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.most)


class Tick(NamedTuple):
    """A line of the grid, and what is written at it."""

    at: float
    label: str


def steps(
    timeline: Sequence[Point], hours: float, value: Callable[[Point], float]
) -> list[tuple[float, float]]:
    """When a value becomes what; where that cannot be seen, means over equal parts of the time."""
    found: list[tuple[float, float]] = []
    for point in timeline:
        if not found or found[-1][1] != value(point):
            found.append((point.hours, value(point)))
    shortest = min((end - begin for (begin, _), (end, _) in pairwise(found)), default=hours)
    return found if shortest >= hours / MOST_STEPS else _means(found, hours)


def _means(found: Sequence[tuple[float, float]], hours: float) -> list[tuple[float, float]]:
    width = hours / MOST_STEPS
    sums = [0.0] * MOST_STEPS
    for (begin, value), (end, _) in pairwise([*found, (hours, 0.0)]):
        at = begin
        while at < end:
            part = min(int(at / width), MOST_STEPS - 1)
            border = end if part == MOST_STEPS - 1 else min(end, (part + 1) * width)
            if border <= at:
                # Rounding has put it into the part before.
                part, border = min(part + 1, MOST_STEPS - 1), min(end, (part + 2) * width)
            sums[part] += value * (border - at)
            at = border
    return [(part * width, total / width) for part, total in enumerate(sums)]


def path(curve: Sequence[tuple[float, float]], frame: Frame) -> str:
    """As the `d` of an SVG path."""
    pieces: list[str] = []
    for index, (hours, value) in enumerate(curve):
        x, y = frame.x(hours), frame.y(value)
        pieces.append(f"M{x:.1f} {y:.1f}" if index == 0 else f"H{x:.1f}V{y:.1f}")
    return "".join(pieces) + f"H{frame.x(frame.hours):.1f}" if pieces else ""


def area(curve: Sequence[tuple[float, float]], frame: Frame) -> str:
    """The same, filled down to zero."""
    line = path(curve, frame)
    return f"{line}V{frame.y(0):.1f}H{frame.x(0):.1f}Z" if line else ""


def round_ticks(most: float, about: int) -> list[float]:
    """Round numbers from 0 up to `most`, about so many of them."""
    if most <= 0:
        return [0.0]
    size = 1.0
    while size > most / about:
        size /= 10
    while size * 10 <= most / about:
        size *= 10
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= most / about * 0.999)
    count = int(most / step * (1 + 1e-9))
    return [index * step for index in range(count + 1)]


def ticks(values: Sequence[float]) -> list[Tick]:
    """With as few digits as tell them apart."""
    step = values[1] - values[0] if len(values) > 1 else 1.0
    digits = 0
    while digits < 12 and abs(round(step, digits) - step) > 1e-6 * step:
        digits += 1
    return [Tick(value, f"{value:,.{digits}f}") for value in values]


def page(report: Report) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "figure": figure,
        "percent": percent,
        "counted": counted,
        "span": span_text,
    }
    environment.filters.update(filters)
    source = files("recycle_compiler.fleet").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(_values(report))


def _values(report: Report) -> dict[str, Any]:
    hours = max(report.hours, 1e-9)
    peaks = [point.throughput for outcome in report.outcomes for point in outcome.timeline]
    speed = Frame(
        _LEFT, 20.0, _WIDTH, 320.0, hours, 1.05 * max([report.reference, *peaks], default=1.0) or 1.0
    )
    live = Frame(_LEFT, 390.0, _WIDTH, 110.0, hours, 1.05 * max(report.workers, 1))
    ran = [outcome for outcome in report.outcomes if outcome.average is not None]
    longest = max((outcome.gpu_hours_lost or 0.0 for outcome in ran), default=0.0)
    lines = [_line(outcome, index, report, speed) for index, outcome in enumerate(report.outcomes)]
    ours = next((outcome for outcome in ran if outcome.name == "ours"), None)
    log = () if ours is None else ours.log
    return {
        "report": report,
        "version": __version__,
        "speed": speed,
        "live": live,
        "lines": lines,
        "live_area": area(steps(ran[0].timeline, hours, lambda point: point.live), live) if ran else "",
        "colours": COLOURS,
        "speed_ticks": ticks(round_ticks(speed.most, 6)),
        "share_ticks": _share_ticks(report, speed),
        "above": any((outcome.share or 0.0) > _ABOVE for outcome in ran),
        "live_ticks": [Tick(0.0, "0"), Tick(float(report.workers), f"{report.workers:,}")],
        "hour_ticks": ticks(round_ticks(hours, 12)),
        "longest": longest,
        "log": log[:_MOST_EVENTS],
        "unsaid": max(0, len(log) - _MOST_EVENTS),
        "curves": [{"name": line["name"], "curve": line["curve"]} for line in lines if line["path"]],
    }


def _share_ticks(report: Report, frame: Frame) -> list[Tick]:
    """Percent of the reference, for the axis on the right; above 100 too, where a curve gets there."""
    if not report.reference:
        return []
    values = ticks(round_ticks(100 * frame.most / report.reference, 8))
    return [Tick(share * report.reference / 100, f"{label} %") for share, label in values]


def _line(outcome: Outcome, index: int, report: Report, frame: Frame) -> dict[str, Any]:
    curve = steps(outcome.timeline, frame.hours, lambda point: point.throughput)
    ours = next((other for other in report.outcomes if other.name == "ours"), None)
    more = None
    if ours is not None and None not in (ours.gpu_hours_lost, outcome.gpu_hours_lost) and outcome is not ours:
        more = (outcome.gpu_hours_lost or 0.0) - (ours.gpu_hours_lost or 0.0)
    return {
        "name": outcome.name,
        "outcome": outcome,
        "colour": f"var(--curve{index % len(COLOURS)})",
        "dash": "" if outcome.name == "ours" else _DASHES[index % len(_DASHES)],
        "is_ours": outcome.name == "ours",
        "curve": [[round(hours, 6), float(f"{value:.6g}")] for hours, value in curve],
        "path": path(curve, frame),
        "more": more,
    }
