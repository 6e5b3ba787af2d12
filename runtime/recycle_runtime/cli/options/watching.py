"""Watching a run: rows in a file, on the terminal, on a page, and as event files for TensorBoard."""

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from select import POLLOUT, poll

from recycle_runtime.cli.options.addresses import address
from recycle_runtime.cli.output import Output, UsageError
from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.launcher.live_view import view
from recycle_runtime.launcher.metrics_file import MetricsFile
from recycle_runtime.options.run import RunOptions, WatchOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.observers import ToObserver

Take = Callable[[ToObserver], None]
_LOOPBACK = "127.0.0.1"
_ROW_EVERY = 10.0
"""Seconds from one step that is shown to the next, where a log is all that shows them."""


def page_address(watch: WatchOptions) -> tuple[str, int] | None:
    """Host and port that the page is served on; None without a page."""
    text = watch.page
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text) < 1 << 16:
        return _LOOPBACK, int(text)
    try:
        return address("--page", text, least=0)
    except UsageError:
        raise UsageError(f"--page must be a port, or like 10.0.0.1:8080, got {text!r}") from None


def check_pages(watch: WatchOptions) -> None:
    """UsageError if what was asked for cannot be."""
    page_address(watch)
    if watch.tensorboard is not None:
        from recycle_runtime.live_page.tensorboard import has_tensorboard

        if not has_tensorboard():
            raise UsageError(
                "--tensorboard needs the package tensorboard: `pip install 'recyclec[tensorboard]'`"
            )


class Watchers:
    """All that take the news of a run."""

    def __init__(self, metrics: MetricsFile, show: Take) -> None:
        self.metrics = metrics
        self._takes = [metrics.take, show]

    def add(self, take: Take) -> None:
        self._takes.append(take)

    def take(self, message: ToObserver) -> None:
        for each in self._takes:
            each(message)


@contextmanager
def watchers(
    options: RunOptions, bundle: Bundle, job_token: str, output: Output, show: Take
) -> Generator[Watchers]:
    """Takers of the news of the run; `show` is for the terminal. OSError if a file cannot be written or the
    page not be served."""
    watch = options.watch
    if watch.metrics is not None and Path(watch.metrics).is_dir():
        raise UsageError(f"--metrics must be a file, and {watch.metrics} is a folder")
    with ExitStack() as stack:
        found = Watchers(stack.enter_context(MetricsFile(watch.metrics)), show)
        if (where := page_address(watch)) is not None:
            from recycle_runtime.live_page.run_state import RunState
            from recycle_runtime.live_page.server import PageServer, page_token

            timed = not JobText(bundle.job_text).is_abstract
            name = Path(options.bundle).stem
            state = RunState(name, bundle.stages, bundle.pipelines, timed=timed)
            page = stack.enter_context(PageServer(state, page_token(job_token), *where))
            # Said in any case: without it nobody gets in.
            output.words(f"{output.program}: the run is shown at {page.link}\n")
            found.add(state.take)
        if watch.tensorboard is not None:
            from recycle_runtime.live_page.tensorboard import TensorBoardLog

            found.add(stack.enter_context(TensorBoardLog(watch.tensorboard)).take)
        yield found


def steady_view(bundle: Bundle, output: Output) -> Take:
    """Shows the run from within the process that leads it, which waits for no terminal and ends with none."""

    def write(text: str) -> None:
        if _takes_words():
            output.words(text)

    return view(bundle.stages, bundle.pipelines, output.quiet, row_every=_ROW_EVERY, write=write)


def _takes_words() -> bool:
    """True if stderr does at once; a terminal that is paused does not."""
    asked = poll()
    try:
        asked.register(sys.stderr, POLLOUT)
        return bool(asked.poll(0))
    except (OSError, ValueError):
        # Not a file of the system, or one that cannot be written to, which is found out then.
        return True
