"""Pictures of plans: what is drawn is what the plan says, and it is a file that others can open."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.text import parse_schedule
from recycle_compiler.viz import picture as pictures
from recycle_compiler.viz.picture import PALETTES, THEMES, Theme, picture

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def ops(text: str) -> list[ElementTree.Element]:
    return [rect for rect in parsed(text).iter(f"{SVG}rect") if rect.get("class", "").startswith("op ")]


def words(text: str) -> list[str]:
    return [found.text or "" for found in parsed(text).iter(f"{SVG}text")]


def test_every_op_is_a_box_as_long_as_it_takes(tiny: Schedule) -> None:
    drawn = ops(picture(tiny))
    timed = [(op, start, end) for op, start, end in tiny.rows() if end > start]
    assert len(drawn) == len(timed)
    units = {
        round(float(box.get("width", "0")) + (1.8 if "guest" in box.get("class", "") else 0), 0)
        / (end - start)
        for box, (_, start, end) in zip(drawn, timed, strict=True)
    }
    assert max(units) - min(units) < 2e-3 * max(units)


def test_micro_batches_of_other_pipelines_are_framed_and_failed_workers_hatched(tiny: Schedule) -> None:
    text = picture(tiny)
    guests = [box for box in ops(text) if "guest" in box.get("class", "")]
    titles = [title.text or "" for box in guests for title in box.iter(f"{SVG}title")]
    assert titles
    assert all(re.match(r"[FIW]1\.\d ", title) for title in titles)
    assert text.count('fill="url(#failed)"') == 1 + len(tiny.failed)
    assert {"re-routed: of another pipeline", "failed", "1:1"} <= set(words(text))


def test_the_period_and_its_proof(tiny: Schedule) -> None:
    assert "period 13 slots, and no plan is faster" in words(picture(tiny))
    claims = replace(tiny.claims, lower_bound=12 * tiny.job.ticks_per_unit)
    drawn = words(picture(replace(tiny, claims=claims)))
    assert "period 13 slots, at most 8.3 % above the best possible" in drawn
    assert "bound 12 slots: no plan is faster" in drawn


def test_memory_on_request(tiny: Schedule) -> None:
    assert 'class="memory"' not in picture(tiny)
    text = picture(tiny, memory=True)
    live = tiny.job.workers - len(tiny.failed)
    assert text.count('<path class="memory"') == live
    peaks = {f"at most {amount // tiny.job.memory_scale}" for _, _, amount in tiny.peak_memory()}
    assert peaks == set(re.findall(r"at most \d+(?=<)", text))


@pytest.mark.parametrize("theme", THEMES)
def test_colours_of_a_theme(tiny: Schedule, theme: Theme) -> None:
    text = picture(tiny, theme=theme)
    assert ("prefers-color-scheme" in text) == (theme == "auto")
    assert (PALETTES["dark"]["page"] in text) == (theme != "light")
    assert (".row { fill: " + PALETTES["light"]["row"] in text) == (theme != "dark")


def test_a_large_plan_is_one_shape_for_every_kind_and_worker(
    tiny: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "_MOST_BOXES", 3)
    text = picture(tiny)
    assert ops(text) == []
    shapes = [path for path in parsed(text).iter(f"{SVG}path") if path.get("class", "").startswith("op ")]
    drawn = sum((path.get("d") or "").count("M") for path in shapes)
    assert drawn == sum(end > start for _, start, end in tiny.rows())


def test_names_are_text(tiny: Schedule) -> None:
    job = replace(tiny.job, name="<script>alert(1)</script>")
    text = picture(replace(tiny, job=job))
    assert "<script" not in text
    assert parsed(text).findtext(f"{SVG}title") == job.name


@pytest.mark.parametrize("width", [300, 550, 5000])
def test_everything_is_inside_whatever_the_width(tiny: Schedule, width: int) -> None:
    root = parsed(picture(tiny, width=width, memory=True))
    assert float(root.get("width", "0")) == width
    height = float(root.get("height", "0"))
    for text in root.iter(f"{SVG}text"):
        x, letters = float(text.get("x", "0")), len(text.text or "")
        if text.get("class") in ("quiet", "title", "title first"):
            assert x >= 0 and x + 6.4 * letters <= width + 6.4, text.text
        assert 0 <= float(text.get("y", "0")) <= height


def test_a_width_without_room_is_refused(tiny: Schedule) -> None:
    with pytest.raises(ValueError, match="300 to 100000 pixels wide, got 10"):
        picture(tiny, width=10)


def test_nothing_is_loaded_from_elsewhere(tiny: Schedule) -> None:
    text = picture(tiny).replace("http://www.w3.org/2000/svg", "")
    assert "http" not in text
    assert "@import" not in text


def test_the_picture_of_the_readme_is_the_golden_plan() -> None:
    """But for the name of its job, which the command takes from another file."""
    golden = parse_schedule((ROOT / "golden/schedules/staggered-unlimited.txt").read_text(encoding="utf-8"))
    named = replace(golden, job=replace(golden.job, name="figure3-unlimited"))
    assert (ROOT / "docs/figure3.svg").read_text(encoding="utf-8") == picture(named)
