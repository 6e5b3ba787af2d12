"""One option: parsers, command lines of started processes and checks follow from its definition.

    seed: int = number(0, "N", "seed of parameters, data and dropout (default: {default})", commands=(...))

A field that is defined so belongs to a dataclass of options (see `run`). The commands that have the option
are those that let a user say it, and those that are started with it. Standard library only.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Final

LARGEST: Final = (1 << 63) - 1
_KEY = "option"

Path = tuple[str, ...]
"""The names of the fields that lead to an option: one, or two if it is in a group."""
Check = Callable[[str, Any], None]
"""OptionError if an option with this flag cannot have this value."""


class OptionError(ValueError):
    """A value that an option cannot have, in one sentence."""


def _any_value(flag: str, value: object) -> None:
    """Every value will do."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option, as one command has it."""

    flag: str
    help: str
    """With `{default}` for the default of the flag; argparse.SUPPRESS: it is not in the help."""
    commands: tuple[str, ...]
    default: Any
    """The value where nothing is said."""
    given: Any = None
    """The same as words of a command line; None: there are none that mean the default."""
    required: bool = False
    parser: Mapping[str, Any]
    """Further arguments for argparse."""
    check: Check = _any_value
    read: Callable[[Any], Any] = _same
    """The value, from what argparse has found; ValueError in words behind the flag."""
    write: Callable[[Any], Any] = str
    """A word, several, True for the flag alone, or None for nothing."""
    needs: str = ""
    """The option without which it has no meaning, its value, and what that is."""
    is_shared_path: bool = False
    """True for a path that nodes share; a relative one would mean another place in each process."""
    differs: Mapping[str, Mapping[str, Any]]
    """Fields of this class that are others in a command."""

    @property
    def name(self) -> str:
        """Among parsed arguments."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def arguments(self) -> dict[str, Any]:
        """For `add_argument`."""
        given = f"{self.given:g}" if isinstance(self.given, float) else self.given
        told = dict(self.parser) | {"help": self.help.replace("{default}", str(given))}
        return told | ({"required": True} if self.required else {"default": self.given})

    def value(self, given: Any) -> Any:
        """From what argparse has found; OptionError if that cannot be meant."""
        if given is None:
            return self.default
        self.check(self.flag, given)
        try:
            return self.read(given)
        except ValueError as error:
            raise OptionError(f"{self.flag}: {error}") from None

    def words(self, value: Any) -> list[str]:
        """Of a command line that gives the option this value."""
        if not self.required and value == self.value(self.given):
            return []
        said: Any = self.write(value)
        if said is None or said is True:
            return [self.flag] if said else []
        return [f"{self.flag}={each}" for each in (said if isinstance(said, tuple) else (said,))]  # pyright: ignore[reportUnknownVariableType]


def option(
    default: Any,
    explained: str,
    commands: tuple[str, ...],
    *,
    flag: str = "",
    differs: Mapping[str, Mapping[str, Any]] | None = None,
    parser: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A field whose flag is its name, unless another is named."""
    made = Option(
        flag=flag,
        help=explained,
        commands=commands,
        default=default,
        differs=differs or {},
        parser=parser or {},
        **more,
    )
    return field(default=default, metadata={_KEY: made})


def text(metavar: str, explained: str, commands: tuple[str, ...], **more: Any) -> Any:
    """A word, such as a path; None where nothing is said."""
    usual: dict[str, Any] = {"parser": {"metavar": metavar}}
    return option(None, explained, commands, **usual | more)


def shared_path(metavar: str, explained: str, commands: tuple[str, ...], **more: Any) -> Any:
    """A path that nodes share; None where nothing is said."""
    return text(metavar, explained, commands, is_shared_path=True, **more)


def switch(explained: str, commands: tuple[str, ...], **more: Any) -> Any:
    """True if the flag is there."""
    usual: dict[str, Any] = {"given": False, "parser": {"action": "store_true"}, "write": bool}
    return option(False, explained, commands, **usual | more)


def number(
    default: int | None, metavar: str, explained: str, commands: tuple[str, ...], check: Check, **more: Any
) -> Any:
    """A whole number."""
    usual: dict[str, Any] = {"given": default, "parser": {"type": int, "metavar": metavar}, "check": check}
    return option(default, explained, commands, **usual | more)


def seconds(default: float, explained: str, commands: tuple[str, ...], check: Check, **more: Any) -> Any:
    """A number of seconds."""
    parser = {"type": float, "metavar": "SECONDS"}
    return option(default, explained, commands, given=default, parser=parser, check=check, **more)


def choice(
    default: Any, choices: tuple[str, ...], explained: str, commands: tuple[str, ...], **more: Any
) -> Any:
    """One of a few words."""
    usual: dict[str, Any] = {"given": default, "parser": {"choices": choices}}
    return option(default, explained, commands, **usual | more)


def chosen_truth(
    default: bool | None, choices: Mapping[str, bool | None], given: str, *told: Any, **more: Any
) -> Any:
    """One of a few words, each of which means yes, no or None."""
    words = {value: word for word, value in choices.items()}
    return choice(
        default, tuple(choices), *told, given=given, read=choices.__getitem__, write=words.__getitem__, **more
    )


def repeated(metavar: str, explained: str, commands: tuple[str, ...], **more: Any) -> Any:
    """Words of a flag that may be there several times."""
    usual: dict[str, Any] = {"given": [], "read": tuple, "write": tuple}
    usual["parser"] = {"action": "append", "metavar": metavar}
    return option((), explained, commands, **usual | more)


def must_be(what: str, holds: Callable[[Any], bool]) -> Check:
    """A check whose sentence says what the value should be, and what it is."""

    def check(flag: str, value: Any) -> None:
        if not holds(value):
            found = f"{value:g}" if isinstance(value, float) else repr(value)
            raise OptionError(f"{flag} must be {what}, got {found}")

    return check


def at_least(least: int) -> Check:
    return must_be(f"at least {least}", lambda value: value >= least)


def from_on(least: int) -> Check:
    """Up to what a message can hold."""
    return must_be(f"from {least} to {LARGEST}", lambda value: least <= value <= LARGEST)


ABOVE_ZERO: Final = must_be("a number of seconds above 0", lambda value: value > 0)
FINITE: Final = must_be("a number of seconds above 0", lambda value: 0 < value < math.inf)


def options_of(definition: type, command: str) -> Iterator[tuple[Path, Option]]:
    """Those that a command has, as it has them, in the order of their definition."""
    for each in fields(definition):
        if (group := _group(each)) is not None:
            yield from (((each.name, *path), found) for path, found in options_of(group, command))
        elif _KEY in each.metadata and command in each.metadata[_KEY].commands:
            defined: Option = each.metadata[_KEY]
            named = replace(defined, flag=defined.flag or f"--{each.name.replace('_', '-')}")
            yield (each.name,), replace(named, **named.differs.get(command, {}))


def build(definition: type[Any], values: Mapping[Path, Any], above: Path = ()) -> Any:
    """Options with these values."""
    own: dict[str, Any] = {}
    for each in fields(definition):
        path = (*above, each.name)
        if (group := _group(each)) is not None:
            own[each.name] = build(group, values, path)
        elif path in values:
            own[each.name] = values[path]
    return definition(**own)


def _group(each: Any) -> type | None:
    """Options that travel together are a dataclass of their own."""
    made = each.default_factory
    return made if made is not MISSING and isinstance(made, type) and is_dataclass(made) else None
