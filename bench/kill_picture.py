"""Loss curves of an undisturbed series and of one under kills, as SVG, with a tick for every kill."""

from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from bench.kill_records import RunRecord, losses

_WIDTH, _HEIGHT = 800, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 64, 96
_TICKS = 14
"""Height of the strip with the kills, below the plot."""
_MOST_POINTS = 700
_QUIET, _DISTURBED, _KILL, _GREY = "#9ecae9", "#1b3a5c", "#d1495b", "#444"


def kill_picture(quiet: Sequence[RunRecord], disturbed: Sequence[RunRecord]) -> str:
    """The picture: losses over steps, and below them each kill at the step that it interrupted."""
    calm, rough, kills = losses(quiet), losses(disturbed), list(kill_steps(disturbed))
    steps = max(*calm, *rough, 1) if calm or rough else 1
    top = max([*calm.values(), *rough.values()], default=1.0) * 1.05
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
            f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            *_axes(steps, top),
            _curve(calm, steps, top, _QUIET, 6),
            _curve(rough, steps, top, _DISTURBED, 1.5),
            *_kills(kills, steps),
            *_legend(len(kills)),
            "</svg>",
            "",
        ]
    )


def kill_steps(runs: Sequence[RunRecord]) -> Iterator[float]:
    """Place of each kill on the axis of steps: at the first row after it."""
    for run in runs:
        for kill in run.kills:
            after = (row.step for row in run.rows if row.at > kill.at)
            last = run.rows[-1].step if run.rows else 0
            yield next(after, last)


def _x(step: float, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / steps


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _axes(steps: int, top: float) -> Iterator[str]:
    for value in _marks(top):
        y = _y(value, top)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(_LEFT - 8, y + 4, f"{value:g}", "end")
    below = _HEIGHT - _BOTTOM + _TICKS + 28
    for step in _marks(steps):
        yield _text(_x(step, steps), below, f"{step:,.0f}", "middle")
    yield _text(_WIDTH - _RIGHT, below + 22, "training step", "end")
    yield _text(_LEFT - 8, _TOP - 12, "loss", "end")


def _marks(top: float) -> list[float]:
    """Round numbers from 0 on, at most eight."""
    apart = next(
        factor * 10.0**power
        for power in range(-6, 12)
        for factor in (1, 2, 5)
        if top / (factor * 10**power) < 8
    )
    return [number * apart for number in range(int(top / apart) + 1)]


def _curve(values: Mapping[int, float], steps: int, top: float, colour: str, width: float) -> str:
    every = -(-len(values) // _MOST_POINTS) or 1
    made = sorted(values)
    shown = [*made[::every], *made[-1:]]
    points = " ".join(f"{_x(step, steps):.1f},{_y(values[step], top):.1f}" for step in shown)
    line = f'fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
    return f'<polyline points="{points}" {line}/>'


def _kills(kills: Sequence[float], steps: int) -> Iterator[str]:
    y = _HEIGHT - _BOTTOM + 8
    for step in kills:
        x = _x(step, steps)
        yield f'<line x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{y + _TICKS}" stroke="{_KILL}"/>'


def _legend(kills: int) -> Iterator[str]:
    entries = (
        (_QUIET, 6, "undisturbed"),
        (_DISTURBED, 1.5, "workers killed and returning"),
        (_KILL, 1, f"{kills:,} kills, a tick each"),
    )
    x = _LEFT
    for colour, width, words in entries:
        yield (
            f'<line x1="{x}" y1="24" x2="{x + 28}" y2="24" stroke="{colour}" stroke-width="{width}"/>'
            if colour != _KILL
            else f'<line x1="{x + 14}" y1="17" x2="{x + 14}" y2="31" stroke="{colour}"/>'
        )
        yield _text(x + 36, 28, words)
        x += 36 + 7 * len(words) + 20


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_GREY}">{escape(words)}</text>'
