"""Options: how a plan is shown, and where."""

import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence

from recycle_compiler.cli.bundles import schedule_of
from recycle_compiler.cli.options.files import add_output_argument
from recycle_compiler.cli.values import one_of, positive
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.text import print_schedule, print_streams
from recycle_compiler.viz.document import document
from recycle_compiler.viz.grid import schedule_grid
from recycle_compiler.viz.picture import LEAST_WIDTH, MOST_WIDTH, THEMES, WIDTH, picture
from recycle_compiler.viz.plan_page import PageSide, document_of, plan_page
from recycle_runtime.cli.output import Output, UsageError, to_stdout
from recycle_runtime.cli.parser import Arguments

FORMATS = ("grid", "svg", "html", "json", "asm", "schedule")
_WIDTH_WITHOUT_TERMINAL = 180


def add_view_arguments(parser: Arguments, formats: Sequence[str] = FORMATS, file_note: str = "") -> None:
    """A format, a file, and how a grid or a picture is drawn."""
    parser.add_argument(
        "--format", type=one_of(formats), metavar="|".join(formats), help="output format (default: grid)"
    )
    add_output_argument(parser, file_note)
    parser.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="columns of a grid (default: as wide as the terminal; "
        f"{_WIDTH_WITHOUT_TERMINAL} in a file or a pipe), or pixels of an svg",
    )
    parser.add_argument(
        "--memory", action="store_true", help="draw the memory that each worker holds, in an svg"
    )
    parser.add_argument(
        "--theme",
        type=one_of(THEMES),
        default="auto",
        metavar="|".join(THEMES),
        help="colours of an svg (default: auto, as the page around it)",
    )


def deliver_view(streams: Streams, origin: str, arguments: Namespace, output: Output) -> None:
    """Write the plan to `-o` or stdout; `origin` is the file to blame if it cannot be replayed."""
    output.deliver(_view(streams, origin, arguments, output), arguments.out)


def _view(streams: Streams, origin: str, arguments: Namespace, output: Output) -> str:
    if arguments.format == "asm":
        return print_streams(streams)
    schedule = schedule_of(streams, origin)
    if arguments.format == "json":
        return document(schedule)
    if arguments.format == "schedule":
        return print_schedule(schedule)
    if arguments.format == "html":
        return plan_page(schedule.job.name, [PageSide(origin, (document_of(schedule),))])
    if arguments.format == "svg":
        width = arguments.width or WIDTH
        if not LEAST_WIDTH <= width <= MOST_WIDTH:
            limits = f"from {LEAST_WIDTH} to {MOST_WIDTH} pixels"
            raise UsageError(f"--width must be {limits} for an svg, got {width}")
        return picture(schedule, width=width, memory=arguments.memory, theme=arguments.theme)
    on_terminal = to_stdout(arguments.out) and sys.stdout.isatty()
    width = arguments.width or (_terminal_width() if on_terminal else _WIDTH_WITHOUT_TERMINAL)
    return schedule_grid(schedule, width, color=on_terminal and output.colored(sys.stdout))


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
