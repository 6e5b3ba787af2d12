"""`recyclec play`, as people see and use it."""

import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recycle_compiler.frontend import load_job
from recycle_compiler.playground.server import Playground
from recycle_compiler.playground.settings import settings_of
from tests.browser.conftest import NARROW, WIDE, Scheme, fits

if TYPE_CHECKING:
    from playwright.sync_api import Page

Recyclec = Callable[..., tuple[int, str, str]]
Open = Callable[..., "Page"]
Keep = Callable[["Page", str], None]


@pytest.fixture
def served(small_job: str) -> Generator[Playground]:
    with Playground(settings_of(load_job(small_job).spec)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def settled(page: "Page") -> None:
    page.locator("#status", has_text="planned in").wait_for()


def changed(page: "Page", change: Callable[[], Any]) -> None:
    """Make a change and wait for its plan."""
    page.evaluate("document.getElementById('status').textContent = ''")
    change()
    settled(page)


def test_numbers_are_those_of_the_json(
    served: Playground, recyclec: Recyclec, opened: Open, tmp_path: Path
) -> None:
    page = opened(served.address, own=served.address)
    settled(page)
    changed(page, lambda: page.click('[data-worker="1:1"]'))
    job = tmp_path / "shown.job"
    job.write_text(page.inner_text("#text"), encoding="utf-8")
    plan = json.loads(recyclec("plan", str(job), "--failed", "1:1", "--format", "json")[1])
    assert page.inner_text("#period") == f"{plan['period']} slots"
    assert page.inner_text("#bound") == f"{plan['lower_bound']} slots"
    assert page.inner_text("#ops") == str(len(plan["ops"]))
    assert page.inner_text("#workers") == "5 of 6"
    names = page.eval_on_selector_all("#bars .bar", "bars => bars.map((bar) => bar.dataset.name)")
    assert names == ["this plan", "bound", "ReCycle", "1F1B", "ZB-H1", "ZB-H2"]
    changed(page, lambda: page.click("#revive"))
    assert page.inner_text("#workers") == "6 of 6"


def test_sliders_by_keys_and_what_has_no_plan(served: Playground, opened: Open) -> None:
    page = opened(served.address, own=served.address)
    settled(page)
    page.locator("#stages").focus()
    changed(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.inner_text("#workers") == "9 of 9"
    assert "pipeline = 3" in page.inner_text("#text")
    page.locator("#forward").focus()
    changed(page, lambda: page.keyboard.press("ArrowRight"))
    assert "forward = 1.25" in page.inner_text("#text")
    changed(page, lambda: page.click("#stagger"))
    assert "adaptive  decouple }" in page.inner_text("#text")
    # A click while the grid of another plan takes the place of the last one would be lost.
    changed(page, lambda: page.click('[data-worker="0:0"]'))
    changed(page, lambda: page.click('[data-worker="1:0"]'))
    page.click('[data-worker="2:0"]')
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error") == "stage 0 has no live worker: all 3 of its workers failed"
    changed(page, lambda: page.click('[data-worker="0:0"]'))
    assert page.locator("#error").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_any_screen(served: Playground, opened: Open, keep: Keep, width: int, scheme: Scheme) -> None:
    page = opened(served.address, width, scheme, own=served.address)
    settled(page)
    changed(page, lambda: page.click('[data-worker="0:1"]'))
    assert fits(page)
    keep(page, f"play-{width}-{scheme}")
