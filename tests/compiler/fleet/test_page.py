"""The HTML page: whole, closed in itself, and safe whatever the names are."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.fleet.accounts import GpuHours
from recycle_compiler.fleet.page import COLOURS, MOST_STEPS, page, steps
from recycle_compiler.fleet.report import FleetPoint, FleetReport, LogEntry, PolicyOutcome
from recycle_compiler.viz.picture import PALETTES

VOID = {"meta", "input", "link"}


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


def report(job: str = "figure3", policy: str = "oobleck", points: int = 3) -> FleetReport:
    timeline = tuple(FleetPoint(12 * i / points, 12 - i % 3, 5.0 - i % 4) for i in range(points))
    log = (LogEntry(4.0, 11, 0.2, 0.5, 4.0, "1:2 failed"),)
    return FleetReport(
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
            PolicyOutcome("ours", "as measured", 4.5, 0.9, 28.8, 0.1, 400.0, 2.0, timeline, log),
            PolicyOutcome(policy, "templates", 4.0, 0.8, 57.6, 0.3, 380.0, 9.0, timeline, log),
            PolicyOutcome("bamboo", "out of memory", None),
        ),
    )


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_every_gpu_hour_and_its_price() -> None:
    plain = report()
    assert data_of(page(plain))["per_million"] == ""
    used = [replace(one, gpu_hours=GpuHours(200, 1, 50, 2, 3, 0, 32)) for one in plain.outcomes]
    data = data_of(page(replace(plain, price=2.0, outcomes=tuple(used))))
    assert data["per_million"] == "per million samples" and "all of them cost 576" in data["paid"]
    ours, _, bamboo = data["policies"]
    assert len(ours["uses"]) == len(data["uses"]) and sum(ours["uses"]) == 24 * 12
    assert ours["cost"] == pytest.approx(576e6 / (4.5 * 12 * 3600)) and bamboo["cost"] is None


def test_whole_and_with_everything_in_it() -> None:
    text = page(report())
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    data = data_of(text)
    assert data["title"] == "figure3 under every 4h" and data["shown"][0] == "ours"
    assert [policy["name"] for policy in data["policies"]] == ["ours", "oobleck", "bamboo"]
    ours, oobleck, bamboo = data["policies"]
    assert (ours["lost"], ours["share"], ours["average"]) == (28.8, 0.9, 4.5)
    assert oobleck["curve"] == [[0.0, 5.0], [4.0, 4.0], [8.0, 3.0]]
    assert (bamboo["average"], bamboo["note"]) == (None, "out of memory")
    assert data["live"] == [[0.0, 12.0], [4.0, 11.0], [8.0, 10.0]]
    assert [entry["why"] for entry in data["log"]] == ["1:2 failed"]
    assert page(report()) == text


def test_nothing_is_loaded() -> None:
    text = page(report()).replace("http://www.w3.org/2000/svg", "").replace('href="data:,"', "")
    assert not re.search(r"https?:|src=|href=|@import|url\(", text)


def test_names_stay_names() -> None:
    job, policy = "</script><script>alert(1)</script>", "'\"><img onerror=x>"
    text = page(report(job=job, policy=policy))
    assert text.count("<script") == 2 and "<img" not in text
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    assert data_of(text)["title"].startswith(job)
    assert data_of(text)["policies"][1]["name"] == policy


def test_curves_can_be_seen_on_both_grounds() -> None:
    grounds = (PALETTES["light"]["page"], PALETTES["dark"]["page"])
    for pair in COLOURS:
        for ground, colour in zip(grounds, pair, strict=True):
            assert contrast(colour, ground) >= 3


def contrast(one: str, other: str) -> float:
    """As accessibility guidelines define it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    channels = [int(colour[begin : begin + 2], 16) / 255 for begin in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_nobody_can_run() -> None:
    nothing = FleetReport(
        "j", "t", "", "samples/s", 1.0, 4, 4, 0.0, 0.0, (PolicyOutcome("ours", "no room", None),)
    )
    assert data_of(page(nothing))["policies"][0]["note"] == "no room"


def test_a_long_trace_stays_a_small_page() -> None:
    assert len(page(report(points=200_000))) < 400_000


def integral(curve: list[tuple[float, float]], hours: float) -> float:
    return sum(value * (end - begin) for (begin, value), (end, _) in pairwise([*curve, (hours, 0.0)]))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40), st.floats(0.1, 1e4))
def test_means_keep_the_work(shares: list[float], hours: float) -> None:
    count = 3 * MOST_STEPS
    times = sorted({0.0, *(hours * (index + shares[index % len(shares)]) / count for index in range(count))})
    timeline = [FleetPoint(at, 1, float(index % 7)) for index, at in enumerate(times) if at < hours]
    curve = steps(timeline, hours, lambda point: point.throughput)
    whole = integral([(point.hours, point.throughput) for point in timeline], hours)
    assert len(curve) <= MOST_STEPS
    assert integral(curve, hours) == pytest.approx(whole, rel=1e-6)
