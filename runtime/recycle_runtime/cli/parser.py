"""The command line of recyclec and recycle-run: options of all commands, and a parser for each.

A command is a module with `add_arguments(parser)` and `run(arguments, output)`, which returns the exit code.
It is imported once the command line names it, so that `--help` is instant. Standard library only.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from recycle_runtime import logs


class Arguments(Protocol):
    """A parser, or a group of options in one."""

    def add_argument(self, *name_or_flags: str, **options: Any) -> argparse.Action: ...


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command and its subcommands."""

    name: str
    description: str
    version: str
    package: str
    """Package with the modules of the commands."""
    commands: Mapping[str, str]
    """Summary of each command, in a few words."""

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The options, and the command's `run`; a usage error exits with 2."""
        return self._parsers()[0].parse_args(argv)

    def parsers(self) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
        """The parser, and that of each command with all of its arguments."""
        parser, commands = self._parsers()
        for command in commands.values():
            command.load()
        return parser, {**commands}

    def _parsers(self) -> tuple[argparse.ArgumentParser, dict[str, "_CommandParser"]]:
        parser = argparse.ArgumentParser(
            prog=self.name, description=self.description, parents=[self._common()]
        )
        parser.set_defaults(quiet=False, no_color=False, log_level=None, log_file=None)
        commands = parser.add_subparsers(
            dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser
        )
        found: dict[str, _CommandParser] = {}
        for name, does in self.commands.items():
            sentence = f"{does[0].upper()}{does[1:]}."
            command = commands.add_parser(name, help=does, description=sentence, parents=[self._common()])
            command.module = f"{self.package}.{name}"
            found[name] = command
        return parser, found

    def _common(self) -> "_CommandParser":
        """Options that work before and after the command; SUPPRESS lets the one given last stand."""
        parser = _CommandParser(add_help=False, argument_default=argparse.SUPPRESS)
        # A group of its own stands below the options of the command.
        common = parser.add_argument_group("global options")
        common.add_argument("--quiet", action="store_true", help="suppress everything but errors")
        common.add_argument(
            "--no-color", action="store_true", help="disable colour; so does the variable NO_COLOR"
        )
        common.add_argument(
            "--log-level",
            choices=logs.LEVELS,
            metavar="LEVEL",
            help=f"log events of this level and above: {', '.join(logs.LEVELS)} "
            "(default: warning; info with --log-file)",
        )
        common.add_argument(
            "--log-file", metavar="FILE", help="append log lines to FILE instead of writing them to stderr"
        )
        common.add_argument("--version", action="version", version=f"{self.name} {self.version}")
        return parser


def given_words(arguments: argparse.Namespace) -> list[str]:
    """Options that are not at their defaults, as words of a command line, of a command that runs a script."""
    own: dict[str, argparse.Action] = arguments.own_options
    words: list[str] = []
    for action in dict.fromkeys(own.values()):
        option, value = action.option_strings[-1], getattr(arguments, action.dest, None)
        if value is None or value is False or value == action.default:
            continue
        if action.nargs == 0:
            words.append(option)
            continue
        for each in map(str, cast(list[object], value) if isinstance(value, list) else [value]):
            # A word that begins with a dash would be taken for another option.
            words += [f"{option}={each}"] if each.startswith("-") else [option, each]
    return words


class _CommandParser(argparse.ArgumentParser):
    """Gets the arguments of its command when it is first used."""

    module = ""
    split: Callable[[argparse.ArgumentParser, Sequence[str]], tuple[list[str], list[str]]] | None = None
    """Takes the words of a script off, for commands that run one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # `-2h` is a value, which its option refuses in words of its own: no option begins with a digit.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        if message.endswith("expected one argument"):
            message += "; one that begins with a dash is written as in --option=-value"
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.load()
        if self.split is not None and args is not None:
            args, script = self.split(self, args)
            self.set_defaults(script_words=script, own_options=dict(self._option_string_actions))
        return super().parse_known_args(args, namespace)

    def load(self) -> None:
        """Get the arguments of the command, if it has none yet."""
        if self.module:
            command = import_module(self.module)
            self.module = ""
            command.add_arguments(self)
            self.set_defaults(run=command.run)
