"""Time of a frame of the page of a large plan while it is moved: `python -m bench.page_frames`.

The plan has 49,660 ops on 254 workers. Chromium runs without a window and without a GPU, so it paints in
software. Frames are counted by the page; what they cost is processor time, of the thread that runs the script
and of the whole browser, so that other work on the machine does not count.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from recycle_compiler.backends.replay import replay
from recycle_compiler.frontend import parse_job_text
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.viz.plan_page import PageSide, document_of, plan_page

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page

JOB = """\
job fifty-thousand {
  parallel { pipeline = 16  data = 16 }
  batch    { microbatches = 64 }
  profile  { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 3 }
  memory   { capacity = 24 }
}
"""
FRAMES = 120
MOVE = """\
async ([frames, way]) => {
  const chart = recyclec.charts[0];
  chart.frames.length = 0;
  let last = performance.now();
  const between = [];
  for (let frame = 0; frame < frames; frame += 1) {
    if (way === "pan") chart.pan(frame % 40 < 20 ? 23 : -23, 0);
    else if (way === "scroll") chart.pan(0, frame % 40 < 20 ? 31 : -31);
    else chart.zoom(frame % 40 < 20 ? 0.93 : 1 / 0.93);
    await new Promise(requestAnimationFrame);
    between.push(performance.now() - last);
    last = performance.now();
  }
  return [chart.frames, between];
}
"""


class Cost(NamedTuple):
    """Of a frame, in milliseconds."""

    way: str
    script: float
    """Processor time of the main thread: script, layout, recording of what is painted."""
    browser: float
    """Processor time of all of Chromium."""
    median: float
    """By the clock, from the first line of the drawing code to its last."""
    slowest: float
    """The 95th percentile of that."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "large.html"
        ops = write_page(path)
        found = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_timeout(2000)
        print(f"{ops:,} ops, Chromium {browser.version}, {path.stat().st_size / 1e6:.2f} MB")
        for rows in ("rows that can be read", "all rows"):
            if rows == "all rows":
                page.keyboard.press("r")
            for way in ("pan", "zoom", "scroll"):
                cost = measured(page, way)
                print(
                    f"{rows}, {way}: {cost.script:.1f} ms of the main thread, {cost.browser:.1f} ms of all "
                    f"of Chromium; by the clock {cost.median:.1f} ms, 95 % within {cost.slowest:.1f} ms"
                )
        browser.close()


def write_page(path: Path) -> int:
    """The page of the plan; returns how many ops it has."""
    job = parse_job_text(JOB, "large.job")
    schedule = replay(plan_failed(job, failure_set([(3, 5), (7, 9)])))
    path.write_text(plan_page(job.name, [PageSide("large", (document_of(schedule),))]), encoding="utf-8")
    return len(schedule.ops)


def measured(page: "Page", way: str) -> Cost:
    session = page.context.new_cdp_session(page)
    _send(session, "Performance.enable", {"timeDomain": "threadTicks"})
    before, cpu = _task_seconds(session), _browser_seconds()
    frames, _ = page.evaluate(MOVE, [FRAMES, way])
    script = 1000 * (_task_seconds(session) - before) / FRAMES
    browser = 1000 * (_browser_seconds() - cpu) / FRAMES
    session.detach()
    return Cost(way, script, browser, median(frames), quantiles(frames, n=20)[-1])


def _task_seconds(session: "CDPSession") -> float:
    metrics = _send(session, "Performance.getMetrics", {})["metrics"]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "TaskDuration")


def _send(session: "CDPSession", name: str, options: dict[str, Any]) -> dict[str, Any]:
    send = cast("Callable[[str, dict[str, Any]], dict[str, Any]]", getattr(session, "send"))  # noqa: B009
    return send(name, options)


def _browser_seconds() -> float:
    """Of all processes that descend from this one, which are Playwright's and the browser's."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            number = int(entry.name)
            parents[number] = int(fields[1])
            seconds[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    own = os.getpid()

    def is_ours(number: int) -> bool:
        while number not in (0, own):
            number = parents.get(number, 0)
        return number == own

    return sum(value for number, value in seconds.items() if number != own and is_ours(number))


if __name__ == "__main__":
    main()
