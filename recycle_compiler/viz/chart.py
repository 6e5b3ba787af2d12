"""Small charts as SVG, for pages and documents: lines over numbers, and bars in parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from typing import NamedTuple

COLOURS = (
    "#0072b2", "#d55e00", "#00875f", "#b8608f", "#a86f00", "#7a5195", "#666666", "#9c3d3d", "#3d6b3d",
)  # fmt: skip
"""Of lines, in their order; each can be seen on a light and on a dark ground."""
_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 64.0, 34.0, 30.0, 46.0, 230.0
_LEGEND_LINE = 17.0
_KEYS = 3
"""Names in a line of the legend."""
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class Point(NamedTuple):
    """One value; a label is shown beside its mark."""

    x: float
    y: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class LineChart:
    """A chart of lines; a series whose name ends with `*` has marks only."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Point]]
    logarithmic: bool = False
    """Both axes, or the x axis alone where `y_from_zero`."""
    y_from_zero: bool = True
    marks: Mapping[float, str] | None = None
    """Texts on the x axis; None: numbers."""
    width: float = 640.0

    def svg(self) -> str:
        """The picture."""
        points = [point for series in self.series.values() for point in series]
        if not points:
            return ""
        across = _Axis.of([point.x for point in points], self.logarithmic, False)
        up = _Axis.of(
            [point.y for point in points], self.logarithmic and not self.y_from_zero, self.y_from_zero
        )
        return "".join(self._parts(across, up))

    def _parts(self, across: "_Axis", up: "_Axis") -> Iterator[str]:
        inner = self.width - _LEFT - _RIGHT
        height = _TOP + _HEIGHT + _BOTTOM + _LEGEND_LINE * -(-len(self.series) // _KEYS)
        yield _head(self.width, height, self.title)

        def place(point: Point) -> tuple[float, float]:
            return _LEFT + inner * across.share(point.x), _TOP + _HEIGHT * (1 - up.share(point.y))

        for value in up.ticks:
            y = _TOP + _HEIGHT * (1 - up.share(value))
            yield f'<line class="rule" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield _text(_LEFT - 6, y + 4, _number(value), "end")
        marks = self.marks or {value: _number(value) for value in across.ticks}
        for value, word in marks.items():
            if across.low <= value <= across.high:
                yield _text(_LEFT + inner * across.share(value), _TOP + _HEIGHT + 16, word, "middle")
        yield _text(_LEFT + inner / 2, _TOP + _HEIGHT + 34, self.x_label, "middle")
        yield _text(8, _TOP - 10, self.y_label, "start")
        for number, (name, series) in enumerate(self.series.items()):
            colour = COLOURS[number % len(COLOURS)]
            yield from _series(name, [(place(point), point.label) for point in series], colour)
            yield from _key(number, name, colour, self.width, _TOP + _HEIGHT + _BOTTOM + 8)
        yield "</svg>\n"


@dataclass(frozen=True, slots=True)
class Bars:
    """A chart of horizontal bars, each made of parts in one order."""

    title: str
    parts: Sequence[tuple[str, str]]
    """Name and colour."""
    rows: Sequence[tuple[str, Sequence[float], str]]
    """Name, one value for each part, and words at the end."""
    width: float = 820.0

    def svg(self) -> str:
        """The picture."""
        left, right, row = 110.0, 230.0, 24.0
        most = max((sum(values) for _, values, _ in self.rows), default=1.0) or 1.0
        height = _TOP + row * len(self.rows) + 12 + _LEGEND_LINE * -(-len(self.parts) // _KEYS)
        scale = (self.width - left - right) / most
        pieces = [_head(self.width, height, self.title)]
        for number, (name, values, words) in enumerate(self.rows):
            y, x = _TOP + row * number, left
            pieces.append(_text(left - 8, y + 13, name, "end"))
            for (part, colour), value in zip(self.parts, values, strict=True):
                wide = value * scale
                if wide > 0.05:
                    box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{row - 6:.0f}" fill="{colour}"'
                    pieces.append(
                        f"<rect {box}><title>{escape(f'{name}, {part}: {value:,.0f}')}</title></rect>"
                    )
                x += wide
            pieces.append(_text(x + 6, y + 13, words, "start"))
        for number, (part, colour) in enumerate(self.parts):
            pieces += _key(number, part, colour, self.width, _TOP + row * len(self.rows) + 12)
        return "".join((*pieces, "</svg>\n"))


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool

    @classmethod
    def of(cls, values: Sequence[float], logarithmic: bool, from_zero: bool) -> "_Axis":
        low, high = min(values), max(values)
        if logarithmic and low > 0:
            return cls(low, max(high, low * 1.01), True)
        low = 0.0 if from_zero else low
        return cls(low, high if high > low else low + 1, False)

    def share(self, value: float) -> float:
        if self.logarithmic:
            return log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = floor(log10(self.low)), floor(log10(self.high)) + 1
            powers = [10.0**power for power in range(first, last + 1)]
            return [value for value in powers if self.low <= value <= self.high]
        size = (self.high - self.low) / 5
        power = 10.0 ** floor(log10(size))
        step = next(power * one for one in _STEPS if power * one >= size * 0.999)
        first = floor(self.low / step)
        found = [step * number for number in range(first, first + 9)]
        return [value for value in found if self.low - step / 1e6 <= value <= self.high + step / 1e6]


def _head(width: float, height: float, title: str) -> str:
    style = (
        "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#1d232b}"
        ".rule{stroke:#d7dce2}.title{font-weight:600}"
        "@media(prefers-color-scheme:dark){svg{background:#14181d}text{fill:#e6eaee}.rule{stroke:#2c343d}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<style>{style}</style>{_text(width / 2, 14, title, 'middle', 'title')}\n"
    )


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _series(name: str, places: Sequence[tuple[tuple[float, float], str]], colour: str) -> Iterator[str]:
    if not name.endswith("*") and len(places) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _ in places)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for (x, y), label in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        if label:
            yield _text(x + 6, y - 6, label, "start")


def _key(number: int, name: str, colour: str, width: float, top: float) -> Iterator[str]:
    x, y = 16 + (number % _KEYS) * (width - 16) / _KEYS, top + _LEGEND_LINE * (number // _KEYS)
    yield f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="10" height="10" fill="{colour}"/>'
    yield _text(x + 15, y, name.removesuffix("*"), "start")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
