"""`recyclec completion`: a script that completes commands and options in a shell."""

from argparse import Namespace

from recycle_compiler.cli.main import command_line
from recycle_runtime.cli.completion import SHELLS, completion
from recycle_runtime.cli.description import described
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments


def add_arguments(parser: Arguments) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell to write it for")


def run(arguments: Namespace, output: Output) -> int:
    program = command_line()
    output.data(completion(arguments.shell, program.name, described(program)))
    return DONE
