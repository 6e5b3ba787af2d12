"""`recyclec reproduce`: run what a crash has left behind; it crashes again, or the bug is fixed."""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.frontend.read_file import ReadError, read_text
from recycle_compiler.ir.job import TextError
from recycle_compiler.ir.text import print_level
from recycle_compiler.passes.text import reproduce
from recycle_runtime.cli.output import DONE, Output, UserError
from recycle_runtime.cli.parser import Arguments

_MOST_BYTES = 1 << 28
"""The IR of the largest jobs takes some tens of MiB."""


def add_arguments(parser: Arguments) -> None:
    parser.add_argument("file", metavar="FILE", help="the reproducer that recyclec has written")


def run(arguments: Namespace, output: Output) -> int:
    try:
        value = reproduce(read_text(Path(arguments.file), _MOST_BYTES))
    except ReadError as error:
        raise UserError(f"{arguments.file}: not a reproducer: it {error}") from None
    except TextError as error:
        raise UserError(f"{arguments.file}: not a reproducer: {error}") from error
    output.data(print_level(value))
    output.say(f"{arguments.file}: every pass went through")
    return DONE
