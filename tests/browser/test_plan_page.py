"""`show --format html` and `diff --format html`, as people see and use them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.viz.plan_page import PageSide, document_of, plan_page
from tests.browser.conftest import NARROW, WIDE, Scheme, fits

if TYPE_CHECKING:
    from playwright.sync_api import Page

Recyclec = Callable[..., tuple[int, str, str]]
Open = Callable[..., "Page"]
Keep = Callable[["Page", str], None]


@pytest.fixture
def shown(small_bundle: str, recyclec: Recyclec, tmp_path: Path) -> Path:
    """The page of a small bundle."""
    path = tmp_path / "small.html"
    assert recyclec("show", small_bundle, "--failures", "1", "--format", "html", "-o", str(path))[0] == 0
    return path


def figure(page: "Page", name: str) -> str:
    return page.inner_text(f"#{name}")


def sharp(page: "Page") -> None:
    """Wait until all pieces are painted."""
    while not page.evaluate("recyclec.charts.every((chart) => chart.isSharp)"):
        page.wait_for_timeout(20)


def test_numbers_are_those_of_the_json(
    shown: Path, small_bundle: str, recyclec: Recyclec, opened: Open
) -> None:
    page = opened(shown)
    for failures in (1, 0, 2):
        page.locator("#failures").fill(str(failures))
        plan = json.loads(recyclec("show", small_bundle, "--failures", str(failures), "--format", "json")[1])
        assert figure(page, "period") == f"{plan['period']} slots"
        assert figure(page, "bound") == f"{plan['lower_bound']} slots"
        assert figure(page, "makespan") == f"{plan['makespan']} slots"
        assert figure(page, "ops") == str(len(plan["ops"]))
        assert figure(page, "failures-said") == f"{failures} of up to 2"
        failed = ", ".join(":".join(map(str, worker)) for worker in plan["failed"]) or "none"
        assert page.inner_text("#title").endswith(f"failed: {failed}")


def test_every_op_can_be_reached_by_keys_and_says_what_it_waited_for(
    shown: Path, small_bundle: str, recyclec: Recyclec, opened: Open
) -> None:
    plan = json.loads(recyclec("show", small_bundle, "--failures", "1", "--format", "json")[1])
    ops = sorted(
        (op["start"], op["end"], op["kind"])
        for op in plan["ops"]
        if op["worker"] == [0, 0] and op["end"] > op["start"]
    )
    page = opened(shown)
    page.keyboard.press("ArrowRight")
    for start, end, kind in ops:
        said = page.inner_text("#said")
        assert said.startswith(kind) and f"worker 0:0, {start} to {end} slots" in said
        assert "waited for" in said
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "worker 0:1" in page.inner_text("#said")
    page.keyboard.press("Escape")
    assert page.inner_text("#said").startswith("Click an op")


def test_search_path_memory_and_failures_by_keys(shown: Path, opened: Open) -> None:
    page = opened(shown)
    page.keyboard.press("/")
    page.keyboard.type("2:1")
    assert page.inner_text("#said") == "worker 2:1 has failed"
    page.locator("#search").fill("1:1")
    assert re.match(r"worker 1:1: \d+ ops, busy \d+ of 10 slots", page.inner_text("#said"))
    page.locator("#search").fill("F2.1")
    assert page.inner_text("#said") == "2 ops called F2.1"
    page.locator("#search").fill("9:9")
    assert page.inner_text("#said") == "no worker and no op is called 9:9"
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    assert page.get_attribute("#path", "aria-pressed") == "true"
    assert page.inner_text("#said").startswith("critical path: ")
    assert "to O at" in page.inner_text("#said")
    page.keyboard.press("m")
    assert "activations held" in page.inner_text("#legend")
    page.keyboard.press("]")
    assert figure(page, "failures-said") == "2 of up to 2"


def test_the_mouse_tells_and_chooses(shown: Path, opened: Open) -> None:
    page = opened(shown)
    box = page.locator("canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.wait_for_selector("#tip:not([hidden])")
    assert page.inner_text("#tip").startswith(
        "F0.0: forward of micro-batch 0 of pipeline 0\nworker 0:0, 0 to 1"
    )
    page.mouse.click(box["x"] + 60, box["y"] + 60)
    assert page.inner_text("#said").startswith("F0.0: forward")
    before = page.evaluate("recyclec.charts[0].view.span")
    page.keyboard.press("+")
    assert page.evaluate("recyclec.charts[0].view.span") == before / 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_any_screen(shown: Path, opened: Open, keep: Keep, width: int, scheme: Scheme) -> None:
    page = opened(shown, width, scheme)
    page.keyboard.press("m")
    sharp(page)
    assert fits(page)
    corner = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert corner == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
    keep(page, f"show-{width}-{scheme}")


def test_paper_is_light(shown: Path, opened: Open) -> None:
    page = opened(shown, scheme="dark")
    sharp(page)
    corner = """() => {
      const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      copy.drawImage(document.querySelector("canvas"), 0, 0);
      return [...copy.getImageData(0, 0, 1, 1).data];
    }"""
    assert page.evaluate(corner) == [20, 24, 29, 255]
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(corner) == [255, 255, 255, 255]


def test_a_name_is_text(tiny: Schedule, opened: Open, tmp_path: Path) -> None:
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    named = replace(tiny, job=replace(tiny.job, name=name))
    path = tmp_path / "named.html"
    path.write_text(plan_page(name, [PageSide(name, (document_of(named),))]), encoding="utf-8")
    page = opened(path)
    assert page.inner_text("#title").startswith(name)
    assert page.title() == name


def test_two_plans_one_below_the_other(
    small_bundle: str, small_job: str, recyclec: Recyclec, opened: Open, keep: Keep, tmp_path: Path
) -> None:
    other, path = str(tmp_path / "other.plan"), tmp_path / "diff.html"
    recyclec("compile", small_job, "-o", other, "--techniques", "adaptive", "--jobs", "1")
    assert recyclec("diff", small_bundle, other, "--format", "html", "-o", str(path))[0] == 1
    page = opened(path)
    found = json.loads(recyclec("diff", small_bundle, other, "--json")[1])
    for failures, plan in enumerate(found["plans"]):
        page.locator("#failures").fill(str(failures))
        before, after = plan["claims"]["period"]
        assert figure(page, "period") == f"{before} slots \u2192 {after} slots"
    page.locator("canvas").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#said").count("F0.0: forward") == 2
    page.keyboard.press("-")
    spans = page.evaluate("recyclec.charts.map((chart) => chart.view.span)")
    assert spans[0] == spans[1]
    keep(page, "diff-plans")


def test_a_plan_and_its_run(
    small_bundle: str, recyclec: Recyclec, opened: Open, keep: Keep, tmp_path: Path
) -> None:
    trace, path = str(tmp_path / "trace.json"), tmp_path / "run.html"
    recyclec("show", small_bundle, "--failures", "1", "--format", "trace", "-o", trace)
    assert recyclec("diff", small_bundle, trace, "--format", "html", "-o", str(path))[0] == 0
    page = opened(path, NARROW, "dark")
    assert figure(page, "period") == "10 slots"
    assert "step 0 took 10 ms; a slot is 1 ms, as measured" in page.inner_text("#sides")
    assert fits(page)
    keep(page, "diff-run-400-dark")


@pytest.mark.parametrize("techniques", ["adaptive,decouple,stagger", "adaptive"])
def test_nothing_waits_for_what_comes_later_in_groups(
    techniques: str, recyclec: Recyclec, tmp_path: Path, opened: Open
) -> None:
    """Between chunks of one worker nothing is sent, and a sum waits for the work and sums of all holders."""
    source, shown = tmp_path / "groups.job", tmp_path / "groups.html"
    source.write_text(
        "job groups { parallel { pipeline = 1  data = 4 }  batch { microbatches = 2 } "
        "layers { count = 6  forward = 1  backward_input = 1  backward_weight = 1  reduce = 0.8  "
        "optimizer = 0.5  transfer = 0.3 } }"
    )
    layout = ("--layout", "1x1,3x2,2x1@6+4x1,2x1@2", "--techniques", techniques)
    assert recyclec("plan", str(source), *layout, "--format", "html", "-o", str(shown))[0] == 0
    plan = "recyclec.charts[0].plan"
    late = opened(shown).evaluate(
        f"[...Array({plan}.size).keys()].filter((op) => {{ const cause = {plan}.cause(op);"
        f" const late = cause === null ? 0 : cause.at - {plan}.start[op];"
        f" return late > 0 || ({plan}.kind[op] === 5 && late < 0); }}).map((op) => {plan}.waitedText(op))"
    )
    assert late == []
