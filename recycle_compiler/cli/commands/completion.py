"""`recyclec completion`: a script that completes commands and options in a shell."""

from argparse import Namespace

from recycle_compiler.cli.main import command_line
from recycle_runtime.cli.completion import add_shell_argument as add_arguments
from recycle_runtime.cli.completion import print_completion
from recycle_runtime.cli.output import Output

__all__ = ["add_arguments", "run"]


def run(arguments: Namespace, output: Output) -> int:
    return print_completion(command_line(), arguments.shell, output)
