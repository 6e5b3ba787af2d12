"""Options of a run in the parsers of commands, and what they say."""

from argparse import Namespace
from typing import Any

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.options.option import OptionError, Path, build, options_of
from recycle_runtime.options.run import RunOptions


def add_plan_argument(parser: Arguments) -> None:
    """The bundle."""
    parser.add_argument("bundle", metavar="PLAN", help="a bundle, as `recyclec compile` writes it")


def add_options(parser: Arguments, command: str, *only: str) -> None:
    """All that the command has, or `only` those of these names."""
    for path, option in options_of(RunOptions, command):
        if not only or path[-1] in only:
            parser.add_argument(option.flag, **option.arguments)


def read_options(arguments: Namespace) -> RunOptions:
    """The options that the user has asked for; UsageError when something cannot be meant."""
    script: list[str] = getattr(arguments, "script_words", [])
    values: dict[Path, Any] = {("bundle",): arguments.bundle, ("script",): tuple(script)}
    for path, option in options_of(RunOptions, arguments.command):
        given = getattr(arguments, option.name)
        needed = option.needs.partition(" ")[0].removeprefix("--")
        if needed and given != option.given and getattr(arguments, needed) is None:
            raise UsageError(f"{option.flag} needs {option.needs}")
        try:
            values[path] = option.value(given)
        except OptionError as error:
            raise UsageError(str(error)) from None
    found: RunOptions = build(RunOptions, values)
    return found
