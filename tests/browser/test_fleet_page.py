"""`simulate --format html`, as people see and use it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recycle_compiler.fleet.page import page as fleet_page
from recycle_compiler.fleet.report import FleetPoint, FleetReport, PolicyOutcome
from tests.browser.conftest import NARROW, WIDE, Scheme, fits

if TYPE_CHECKING:
    from playwright.sync_api import Page

Recyclec = Callable[..., tuple[int, str, str]]
Open = Callable[..., "Page"]
Keep = Callable[["Page", str], None]
TRACE = ("--trace", "every 2h repair 3h", "--slot", "100ms")


@pytest.fixture(scope="module")
def simulated(small_bundle: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a short simulation with all policies."""
    from recycle_compiler.cli.main import main

    path = tmp_path_factory.mktemp("fleet") / "fleet.html"
    assert main(["--quiet", "simulate", small_bundle, *TRACE, "--format", "html", "-o", str(path)]) == 0
    return path


def names(page: "Page", where: str) -> list[str]:
    return page.eval_on_selector_all(where, "found => found.map((each) => each.dataset.policy)")


def test_numbers_are_those_of_the_json(
    simulated: Path, small_bundle: str, recyclec: Recyclec, opened: Open
) -> None:
    found = json.loads(recyclec("simulate", small_bundle, *TRACE, "--format", "json")[1])
    total = found["gpus"] * found["hours"]
    page = opened(simulated)
    assert names(page, "#rows tr") == ["ours", "recycle", "oobleck", "ideal"]
    for name in ("ours", "recycle", "oobleck"):
        lost = found["policies"][name]["gpu_hours_lost"]
        text = page.inner_text(f'#rows tr[data-policy="{name}"] .lost')
        assert text == f"{said(lost)} of {said(total)} GPU-hours lost"
        share = page.inner_text(f'#rows tr[data-policy="{name}"] td:nth-child(4)')
        assert share == f"{100 * found['policies'][name]['share']:.1f} %"
    assert page.inner_text("#lost") == page.inner_text('#rows tr[data-policy="ours"] .lost')


def said(hours: float) -> str:
    return f"{hours:.0f}" if abs(hours) >= 20 else f"{hours:.1f}"


def test_more_policies_on_request_and_their_assumptions_one_click_away(simulated: Path, opened: Open) -> None:
    page = opened(simulated)
    assert page.locator(".strip").count() == 4
    page.click('#choice button[data-policy="varuna"]')
    assert names(page, "#rows tr") == ["ours", "recycle", "oobleck", "varuna", "ideal"]
    page.click('#choice button[data-policy="recycle"]')
    assert "recycle" not in names(page, "#rows tr")
    note = page.locator('#rows tr[data-policy="oobleck"] details')
    assert note.inner_text() == "assumptions"
    note.locator("summary").click()
    assert len(note.inner_text()) > len("assumptions") + 20


def test_values_by_keys_and_by_mouse(simulated: Path, opened: Open) -> None:
    page = opened(simulated)
    page.locator("#moment").focus()
    page.keyboard.press("End")
    assert page.inner_text("#said") == "at 12.00 h"
    assert "micro-batches/s" in page.inner_text(".strip >> nth=0")
    box = page.locator(".strip svg").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    assert page.inner_text("#said").startswith("at 5.") or page.inner_text("#said").startswith("at 6.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_any_screen(simulated: Path, opened: Open, keep: Keep, width: int, scheme: Scheme) -> None:
    page = opened(simulated, width, scheme)
    assert fits(page)
    keep(page, f"simulate-{width}-{scheme}")


def test_names_are_text_and_some_cannot_run(opened: Open, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    outcomes: tuple[Any, ...] = (
        PolicyOutcome("ours", name, 4.5, 0.9, 28.8, timeline=(FleetPoint(0.0, 12, 4.5),)),
        PolicyOutcome("oobleck", "out of memory", None),
    )
    report = FleetReport(name, "every 4h", "", "samples/s", 12.0, 12, 24, 5.0, 16.0, outcomes)
    path = tmp_path / "named.html"
    path.write_text(fleet_page(report), encoding="utf-8")
    page = opened(path)
    assert page.inner_text("#title") == f"{name} under every 4h"
    assert "cannot run: out of memory" in page.inner_text('#rows tr[data-policy="oobleck"]')
