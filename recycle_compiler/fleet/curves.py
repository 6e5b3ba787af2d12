"""Step curves for a page: from a timeline to the path of an SVG."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from recycle_compiler.fleet.report import Point

MOST_STEPS = 450
"""Of about two pixels each: shorter ones would be drawn over each other."""


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
    while digits < 6 and abs(round(step, digits) - step) > 1e-9:
        digits += 1
    return [Tick(value, f"{value:,.{digits}f}") for value in values]
