"""A simulation as one HTML page: it opens from disk and loads nothing.

The script of the page is in `web/src/fleet/`; here is what it draws from. Curves of long traces are means
over equal parts of the time, so that a page stays small.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from recycle_compiler.fleet.report import (
    USES,
    FleetPoint,
    FleetReport,
    PolicyOutcome,
    counted,
    paid_words,
    span_text,
)
from recycle_compiler.viz.picture import PALETTES
from recycle_compiler.viz.shell import MADE_BY, whole_page

MOST_STEPS = 450
"""Of about two pixels each: shorter ones would be drawn over each other."""
COLOURS = (
    ("#0072b2", "#3aa0e0"), ("#d55e00", "#f07a2a"), ("#00875f", "#1fbf90"), ("#b8608f", "#e08fbc"),
    ("#a86f00", "#f0b030"), ("#2f86bd", "#7cc8f5"), ("#7a5195", "#b08cd0"), ("#8c6d31", "#c8a468"),
    ("#666666", "#a0a8b0"), ("#7d7d00", "#c8c840"), ("#9c3d3d", "#e58a8a"), ("#3d6b3d", "#8fce8f"),
)  # fmt: skip
"""On a light ground and on a dark one, ours first."""
SHOWN = ("ours", "recycle", "oobleck", "ideal")
"""Policies on a page of many until somebody asks for more; the ideal is made from the workers that are up."""
_FEW = 4
"""Policies that are all shown."""
_MOST_EVENTS = 500
"""In the log."""


def steps(
    timeline: Sequence[FleetPoint], hours: float, value: Callable[[FleetPoint], float]
) -> list[tuple[float, float]]:
    """Times at which a value changes, and its new value; if too many to see, means over equal parts."""
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


def page(report: FleetReport) -> str:
    """The whole page."""
    return whole_page("fleet", _title(report), _data(report))


def _title(report: FleetReport) -> str:
    return f"{report.job} under {report.trace}"


def _data(report: FleetReport) -> dict[str, Any]:
    hours = max(report.hours, 1e-9)
    ran = [outcome for outcome in report.outcomes if outcome.average is not None]
    ours = next((outcome for outcome in ran if outcome.name == "ours"), None)
    log = () if ours is None else ours.log
    shape = f"{counted(report.gpus, 'GPU')} in {counted(report.workers, 'worker')}, {span_text(report.hours)}"
    live = steps(ran[0].timeline, hours, lambda point: point.live) if ran else []
    return {
        "title": _title(report),
        "about": f"{shape}; {report.about}" if report.about else shape,
        "made_by": MADE_BY,
        "palettes": PALETTES,
        "unit": report.unit,
        "hours": hours,
        "workers": report.workers,
        "gpus": report.gpus,
        "reference": report.reference,
        "gpu_hours_down": report.gpu_hours_down,
        "uses": list(USES.values()),
        "per_million": "" if report.price is None else report.per_million,
        "paid": " ".join(paid_words(report)),
        "shown": list(SHOWN)
        if len(report.outcomes) > _FEW
        else [*(each.name for each in report.outcomes), "ideal"],
        "policies": [
            _policy(outcome, COLOURS[number % len(COLOURS)], hours)
            | {"cost": report.cost_per_million(outcome)}
            for number, outcome in enumerate(report.outcomes)
        ],
        "live": _rounded(live),
        "log": [entry._asdict() for entry in log[:_MOST_EVENTS]],
        "changes": len(log),
    }


def _policy(outcome: PolicyOutcome, colours: tuple[str, str], hours: float) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "note": outcome.note,
        "average": outcome.average,
        "share": outcome.share or 0.0,
        "lost": outcome.gpu_hours_lost or 0.0,
        "still": outcome.still,
        "redone": outcome.redone,
        "effective": outcome.effective_training_time,
        "uses": [round(hours, 3) for hours in outcome.gpu_hours],
        "curve": _rounded(steps(outcome.timeline, hours, lambda point: point.throughput)),
        "colours": list(colours),
    }


def _rounded(curve: Sequence[tuple[float, float]]) -> list[list[float]]:
    return [[round(hours, 6), float(f"{value:.6g}")] for hours, value in curve]
