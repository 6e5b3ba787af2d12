"""One plan in the format asked for; what `show` and `plan` share."""

import shutil
import sys
from argparse import Namespace

from recycle_compiler.cli.bundles import schedule_of
from recycle_compiler.cli.output import Output, to_stdout
from recycle_compiler.ir.streams import Program
from recycle_compiler.ir.streams_text import print_program
from recycle_compiler.ir.text import print_schedule
from recycle_compiler.viz.document import document
from recycle_compiler.viz.grid import grid

_WIDTH_WITHOUT_TERMINAL = 180


def deliver_view(program: Program, origin: str, arguments: Namespace, output: Output) -> None:
    """Write the plan to `-o` or stdout; `origin` is the file to blame if it cannot be replayed."""
    output.deliver(_view(program, origin, arguments, output), arguments.out)


def _view(program: Program, origin: str, arguments: Namespace, output: Output) -> str:
    if arguments.format == "asm":
        return print_program(program)
    schedule = schedule_of(program, origin)
    if arguments.format == "json":
        return document(schedule)
    if arguments.format == "schedule":
        return print_schedule(schedule)
    on_terminal = to_stdout(arguments.out) and sys.stdout.isatty()
    width = arguments.width or (_terminal_width() if on_terminal else _WIDTH_WITHOUT_TERMINAL)
    return grid(schedule, width, color=on_terminal and output.colored(sys.stdout))


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
