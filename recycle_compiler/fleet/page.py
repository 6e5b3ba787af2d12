"""A simulation as one HTML page: it opens from disk and loads nothing."""

from importlib.resources import files
from typing import Any

from recycle_compiler import __version__
from recycle_compiler.fleet.curves import Frame, Tick, area, path, round_ticks, steps, ticks
from recycle_compiler.fleet.report import Outcome, Report

_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00",
    "#56b4e9", "#7a5195", "#8c6d31", "#666666", "#a0a000",
)  # fmt: skip
"""Ours first. They can be told apart by most people who see some colours only."""
_LEFT, _WIDTH = 70.0, 900.0
_MOST_EVENTS = 500
"""In the log."""


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
        "speed_ticks": ticks(round_ticks(speed.most, 6)),
        "live_ticks": [Tick(0.0, "0"), Tick(float(report.workers), f"{report.workers:,}")],
        "hour_ticks": ticks(round_ticks(hours, 12)),
        "longest": longest,
        "log": log[:_MOST_EVENTS],
        "unsaid": max(0, len(log) - _MOST_EVENTS),
        "curves": [{"name": line["name"], "curve": line["curve"]} for line in lines if line["path"]],
    }


def _line(outcome: Outcome, index: int, report: Report, frame: Frame) -> dict[str, Any]:
    curve = steps(outcome.timeline, frame.hours, lambda point: point.throughput)
    ours = next((other for other in report.outcomes if other.name == "ours"), None)
    more = None
    if ours is not None and None not in (ours.gpu_hours_lost, outcome.gpu_hours_lost) and outcome is not ours:
        more = (outcome.gpu_hours_lost or 0.0) - (ours.gpu_hours_lost or 0.0)
    return {
        "name": outcome.name,
        "outcome": outcome,
        "colour": _COLOURS[index % len(_COLOURS)],
        "is_ours": outcome.name == "ours",
        "curve": [[round(hours, 6), round(value, 6)] for hours, value in curve],
        "path": path(curve, frame),
        "more": more,
    }
