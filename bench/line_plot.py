"""Small line plots as SVG for the docs: panels side by side, one line for each name, no library."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _LEGEND = 210, 190, 46, 34, 44, 150
_COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#8d6cab", "#e08e45", "#5c6b73", "#b5a642", "#3aa6a6", "#999999")


class Panel(NamedTuple):
    """One plot: for each name a value at every x, None where there is none."""

    title: str
    lines: Mapping[str, Sequence[float | None]]


def plot(panels: Sequence[Panel], marks: Sequence[str], label: str, columns: int = 4) -> str:
    """The picture. All panels share the marks on the x axis and the scale of the y axis, which ends at 0."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    values = [value for panel in panels for line in panel.lines.values() for value in line if value]
    top = max(values, default=1.0) * 1.05
    across = min(columns, len(panels))
    down = -(-len(panels) // columns)
    width = _LEFT + across * (_WIDTH + _GAP) + _LEGEND
    height = down * (_HEIGHT + _TOP + 30) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        x, y = _LEFT + column * (_WIDTH + _GAP), _TOP + row * (_HEIGHT + _TOP + 30)
        parts += _panel(panel, marks, top, colours, x, y)
    x = _LEFT + across * (_WIDTH + _GAP)
    for number, name in enumerate(names):
        y = _TOP + 6 + 17 * number
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 20}" y2="{y}" {_stroke(colours[name])}/>')
        parts.append(f'<text x="{x + 26}" y="{y + 4}">{escape(name)}</text>')
    parts.append(f'<text x="{_LEFT}" y="{height - 8}" fill="#444">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    panel: Panel, marks: Sequence[str], top: float, colours: Mapping[str, str], x: int, y: int
) -> Iterator[str]:
    steps = max(1, len(marks) - 1)
    yield f'<text x="{x}" y="{y - 10}" font-weight="bold">{escape(panel.title)}</text>'
    for tenth in range(0, int(top * 10) + 1, 2):
        level = y + _HEIGHT * (1 - tenth / 10 / top)
        yield f'<line x1="{x}" y1="{level:.1f}" x2="{x + _WIDTH}" y2="{level:.1f}" stroke="#ddd"/>'
        yield f'<text x="{x - 6}" y="{level + 4:.1f}" text-anchor="end" fill="#444">{tenth / 10:.1f}</text>'
    for number, mark in enumerate(marks):
        at = x + _WIDTH * number / steps
        where = f'x="{at:.1f}" y="{y + _HEIGHT + 15}" text-anchor="middle"'
        yield f'<text {where} fill="#444">{escape(mark)}</text>'
    for name, line in panel.lines.items():
        points = [
            f"{x + _WIDTH * number / steps:.1f},{y + _HEIGHT * (1 - value / top):.1f}"
            for number, value in enumerate(line)
            if value is not None
        ]
        if points:
            yield f'<polyline points="{" ".join(points)}" fill="none" {_stroke(colours[name])}/>'


def _stroke(colour: str) -> str:
    return f'stroke="{colour}" stroke-width="2"'
