"""Options: a page that shows the run, and event files for TensorBoard."""

from argparse import Namespace
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from recycle_runtime.cli.options.addresses import address
from recycle_runtime.cli.output import Output, UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.coordinator.measured_job import JobText
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages import ToObserver

Take = Callable[[ToObserver], None]
_LOOPBACK = "127.0.0.1"


def add_page_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "--page",
        nargs="?",
        const="0",
        metavar="PORT",
        help="serve a page that shows the run, and /metrics for Prometheus, on this port of this machine "
        "(without one: any free port); HOST:PORT lets others in who have the link, which is printed",
    )
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        help="write event files for TensorBoard, whose package must be installed",
    )


def page_address(arguments: Namespace) -> tuple[str, int] | None:
    """Where the page is served; None without one."""
    text: str | None = arguments.page
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text) < 1 << 16:
        return _LOOPBACK, int(text)
    try:
        return address("--page", text, least=0)
    except UsageError:
        raise UsageError(f"--page must be a port, or like 10.0.0.1:8080, got {text!r}") from None


def check_pages(arguments: Namespace) -> None:
    """UsageError if what was asked for cannot be."""
    page_address(arguments)
    if arguments.tensorboard is not None:
        from recycle_runtime.live_page.tensorboard import has_tensorboard

        if not has_tensorboard():
            raise UsageError("--tensorboard needs the package tensorboard: `pip install tensorboard`")


@contextmanager
def watchers(arguments: Namespace, bundle: Bundle, job_token: str, output: Output) -> Generator[list[Take]]:
    """What takes the news of the run, besides the terminal; OSError if the page cannot be served."""
    found: list[Take] = []
    with ExitStack() as stack:
        if (where := page_address(arguments)) is not None:
            from recycle_runtime.live_page.run_state import RunState
            from recycle_runtime.live_page.server import PageServer, page_token

            timed = not JobText(bundle.job_text).is_abstract
            name = Path(arguments.bundle).stem
            state = RunState(name, bundle.stages, bundle.pipelines, timed=timed)
            page = stack.enter_context(PageServer(state, page_token(job_token), *where))
            # Said in any case: without it nobody gets in.
            output.words(f"{output.program}: the run is shown at {page.link}\n")
            found.append(state.take)
        if arguments.tensorboard is not None:
            from recycle_runtime.live_page.tensorboard import TensorBoardLog

            found.append(stack.enter_context(TensorBoardLog(arguments.tensorboard)).take)
        yield found
