"""The page of a run in a browser: what it shows is what the job says."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from recycle_runtime.live_page.run_state import RunState
from recycle_runtime.live_page.server import PageServer, page_token
from recycle_runtime.protocol.messages.observers import Generation, Hello, JobEvent, Recovered
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled
from tests.browser.conftest import NARROW, WIDE, fits

if TYPE_CHECKING:
    from playwright.sync_api import Page

WORKERS = tuple((pipeline, stage) for pipeline in range(3) for stage in range(4))
BAD_NAME = "<script>alert(1)</script>"


@pytest.fixture
def link() -> Iterator[str]:
    state = RunState(BAD_NAME, 4, 3, timed=True)
    state.take(Hello(100, 0))
    state.take(Generation(1, 0, "0 0 0 0", WORKERS, 0, 180_000_000))
    plan = "0 0 0 0"
    for step in range(60):
        if step == 30:
            plan = "0 0 1 0"
            left = tuple(worker for worker in WORKERS if worker != (1, 2))
            state.take(Generation(2, 30, "0 0 1 0", left, 0, 210_000_000))
            cause = ("1:2 was killed by signal 9",)
            state.take(Recovered(2, cause, 30, 0, 0.19, "0 0 1 0", 0.12, 0.01, 0.03, 0.16))
        seconds = (0.19 if step < 30 else 0.22) + 0.01 * (step * 7 % 5) / 5
        state.take(
            StepRow(step, 4.0 / (1 + step / 10) + 0.05 * (step % 3), seconds, 12, plan, learning_rate=3e-4)
        )
        state.take(StepSettled(step, 1.25, False))
    state.take(JobEvent(f"told by {BAD_NAME}"))
    with PageServer(state, page_token("a token"), "127.0.0.1", 0) as page:
        yield page.link


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_page_shows_the_run(
    link: str, opened: Callable[..., "Page"], keep: Callable[["Page", str], None], width: int, scheme: str
) -> None:
    page = opened(link, width, scheme, own=f"http://{urlsplit(link).netloc}/")
    page.wait_for_selector("#grid i")
    assert "token" not in page.url
    assert page.locator("#grid i.live").count() == 11
    assert page.locator("#grid i.failed").get_attribute("data-worker") == "1:2"
    assert page.locator("#title").inner_text() == BAD_NAME
    assert BAD_NAME in page.locator("#events").inner_text()
    said = page.locator("#figures").inner_text()
    assert "59" in said and "of 100" in said and "11 of 12" in said
    assert "0.16 s" in page.locator("#recoveries").inner_text()
    assert "times what the plan promises" in page.locator("#pace").inner_text()
    assert page.locator("#losses path.line").count() == 1
    assert fits(page)
    keep(page, f"live-{width}-{scheme}")


def test_the_page_says_when_the_job_is_gone(opened: Callable[..., "Page"]) -> None:
    with PageServer(RunState("tiny", 1, 1, timed=True), page_token("a token"), "127.0.0.1", 0) as server:
        page = opened(server.link, own=f"http://{urlsplit(server.link).netloc}/")
        page.wait_for_selector("#grid i")
        page.evaluate("() => { window.fetch = () => Promise.reject(new Error('gone')); }")
        page.get_by_text("No answer from the job any more").wait_for()
