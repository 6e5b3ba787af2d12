"""Arguments of a program's commands, read from their parsers: for shell completion and the reference."""

import argparse
from dataclasses import dataclass

from recycle_runtime.cli.parser import CommandLine


@dataclass(frozen=True, slots=True)
class OptionDescription:
    """An option, or an argument without a name."""

    names: tuple[str, ...]
    """As they are written; none for an argument that stands alone."""
    value: str
    """Placeholder of its value in the help; empty for an option without one."""
    words: tuple[str, ...]
    """The values that it may have, where there are few."""
    does: str
    """In a sentence."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command and what it takes."""

    name: str
    does: str
    usage: str
    options: tuple[OptionDescription, ...]

    @property
    def named(self) -> tuple[OptionDescription, ...]:
        """Those with a name."""
        return tuple(option for option in self.options if option.names)

    @property
    def alone(self) -> tuple[OptionDescription, ...]:
        """Those without."""
        return tuple(option for option in self.options if not option.names)


def described(program: CommandLine) -> tuple[Command, ...]:
    """Every command of a program; the first has no name and is the program itself."""
    parser, commands = program.parsers()
    own = Command("", program.description, parser.format_usage(), _options(parser))
    return own, *(
        Command(name, program.commands[name], command.format_usage(), _options(command))
        for name, command in commands.items()
    )


def _options(parser: argparse.ArgumentParser) -> tuple[OptionDescription, ...]:
    # argparse has no public way to ask a parser what it takes.
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return tuple(
        _option(parser, action)
        for action in actions
        if action.help != argparse.SUPPRESS and action.dest != "command"
    )


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> OptionDescription:
    metavar = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar or ())
    takes = action.nargs != 0
    value = (metavar or action.dest.upper()) if takes else ""
    words = tuple(map(str, action.choices or ()))
    if takes and not words and "|" in value and " " not in value:
        words = tuple(word for word in value.split("|") if not word.isupper())
    does = (action.help or "") % {**vars(action), "prog": parser.prog}
    return OptionDescription(tuple(action.option_strings), value, words, does)
