"""The HTML page: whole, closed in itself, and safe whatever the names are."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.page import COLOURS, MOST_STEPS, page, round_ticks, steps
from recycle_compiler.fleet.report import Entry, Outcome, Point, Report

VOID = {"meta", "input", "line", "path"}
GROUNDS = ("#ffffff", "#14171b")


class Balance(HTMLParser):
    """Fails at a tag that is not closed where it should be."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def report(job: str = "figure3", policy: str = "oobleck", points: int = 3) -> Report:
    timeline = tuple(Point(12 * i / points, 12 - i % 3, 5.0 - i % 4) for i in range(points))
    log = (Entry(4.0, 11, 0.2, 0.5, 4.0, "1:2 failed"),)
    return Report(
        job=job,
        trace="every 4h",
        about="3 events.",
        unit="samples/s",
        hours=12.0,
        workers=12,
        gpus=24,
        reference=5.0,
        gpu_hours_down=16.0,
        outcomes=(
            Outcome("ours", "as measured", 4.5, 0.9, 28.8, 0.1, 400.0, 2.0, timeline, log),
            Outcome(policy, "templates", 4.0, 0.8, 57.6, 0.3, 380.0, 9.0, timeline, log),
            Outcome("bamboo", "out of memory", None),
        ),
    )


def test_whole_and_with_everything_in_it() -> None:
    text = page(report())
    balance = Balance()
    balance.feed(text)
    assert not balance.open and balance.seen.count("path") == 3
    for words in ("figure3", "every 4h", "cannot run: out of memory", "+28.8", "1:2 failed", "90.0 %"):
        assert words in text
    assert page(report()) == text


def test_nothing_is_loaded() -> None:
    text = page(report())
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)


def test_names_stay_names() -> None:
    text = page(report(job="</script><script>alert(1)</script>", policy="'\"><img onerror=x>"))
    assert text.count("<script>") == 1 and "<img" not in text
    balance = Balance()
    balance.feed(text)
    assert not balance.open


def test_what_100_percent_is_and_what_lies_above_it() -> None:
    plain = page(report())
    assert "100 % is zero-bubble" in plain and ">100 %</text>" in plain
    assert ">120 %</text>" not in plain and "More than 100 %" not in plain
    faster = Outcome("varuna", "cut anew", 6.2, 1.24, -69.1, timeline=(Point(0.0, 12, 6.2),))
    above = page(replace(report(), outcomes=(*report().outcomes, faster)))
    assert ">120 %</text>" in above and "More than 100 %" in above and "-69.1" in above
    assert not re.search(r' y[12]?="-', above), "nothing is drawn above the frame"


def test_curves_can_be_seen_on_both_grounds_and_not_by_colour_alone() -> None:
    text = page(report())
    for pair in COLOURS:
        for ground, colour in zip(GROUNDS, pair, strict=True):
            assert ground in text and colour in text and contrast(colour, ground) >= 3
    assert "prefers-color-scheme: dark" in text and "stroke-dasharray=" in text


def test_values_can_be_read_without_a_mouse() -> None:
    text = page(report())
    assert '<input id="moment" type="range"' in text and 'aria-live="polite"' in text
    assert text.count("<svg") == text.count('aria-hidden="true"') + text.count('role="img" aria-label="')


def contrast(one: str, other: str) -> float:
    """As accessibility guidelines define it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[begin : begin + 2], 16) / 255 for begin in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_nobody_can_run() -> None:
    nothing = Report("j", "t", "", "samples/s", 1.0, 4, 4, 0.0, 0.0, (Outcome("ours", "no room", None),))
    assert "cannot run: no room" in page(nothing)


def test_a_long_trace_stays_a_small_page() -> None:
    assert len(page(report(points=200_000))) < 400_000


def integral(curve: list[tuple[float, float]], hours: float) -> float:
    return sum(value * (end - begin) for (begin, value), (end, _) in pairwise([*curve, (hours, 0.0)]))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.floats(0.1, 1e4))
def test_means_keep_the_work(shares: list[float], hours: float) -> None:
    count = 3 * MOST_STEPS
    times = sorted({0.0, *(hours * (index + shares[index % len(shares)]) / count for index in range(count))})
    timeline = [Point(at, 1, float(index % 7)) for index, at in enumerate(times) if at < hours]
    curve = steps(timeline, hours, lambda point: point.throughput)
    whole = integral([(point.hours, point.throughput) for point in timeline], hours)
    assert len(curve) <= MOST_STEPS
    assert integral(curve, hours) == pytest.approx(whole, rel=1e-6)


@given(st.floats(1e-6, 1e9), st.integers(2, 12))
def test_ticks_are_few_and_inside(most: float, about: int) -> None:
    values = round_ticks(most, about)
    assert values[0] == 0.0 and values[-1] <= most * (1 + 1e-6) and 1 <= len(values) <= 2 * about + 2
