"""Pages in a real browser: Chromium, without a window, driven by Playwright.

Every page must open without an error in its console and must ask for nothing, on disk or elsewhere. Pictures
of what was on the screen are left in build/screenshots.
"""

import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
NARROW, WIDE = 400, 1400
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="session")
def browser() -> Generator["Browser"]:
    """One for all tests of a process; skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"Chromium does not start: {error.message.splitlines()[0]}")
        yield started
        started.close()


_PATIENCE = 300_000
"""Milliseconds: machines may be busy."""


@pytest.fixture
def opened(browser: "Browser") -> Generator[Callable[..., "Page"]]:
    """Opens a file or an address; at the end, nothing may have gone wrong on any of the pages."""
    troubles: list[str] = []

    def open_page(
        address: str | Path, width: int = WIDE, scheme: Scheme = "light", own: str = "file:"
    ) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.set_default_timeout(_PATIENCE)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: _check_request(request.url, own, troubles))
        page.goto(address.as_uri() if isinstance(address, Path) else address)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert troubles == []


def _check_request(url: str, own: str, troubles: list[str]) -> None:
    if not url.startswith((own, "data:")):
        troubles.append(f"request: {url}")


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[["Page", str], None]:
    """Leaves a picture of a page where people can look at it."""

    def keep_picture(page: "Page", name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    return keep_picture


def fits(page: "Page") -> bool:
    """True if nothing is wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
