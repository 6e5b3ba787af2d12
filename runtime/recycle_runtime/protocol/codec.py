"""Typed values as JSON has them, and back with every field checked by msgspec.

A dataclass travels as an object, a NamedTuple or a tuple as an array, bytes as base64. What comes back is
checked against the annotations: a field too many or too few, another type, or a number out of range is a
`ProtocolError` whose sentence names the field. The text is left to `json`, which has NaN, infinity and names
of files that are not UTF-8; msgspec's own JSON has none of them.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Annotated, Any, Final, Self, TypeVar, cast

import msgspec

_LARGEST: Final = (1 << 63) - 1
_SHOWN: Final = 60

T = TypeVar("T")
Integer = Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
"""A number of steps, bytes, workers and the like."""


class WireError(ConnectionError):
    """The other end is gone, cannot be reached, or does not speak as it should."""


class UnreachableError(WireError):
    """Nobody listens there."""


class RefusalError(WireError):
    """The listener has answered, and it is not the coordinator, or will not have this process."""


class MismatchError(WireError):
    """Both ends were started in ways that do not go together: no use in trying again."""


class ProtocolError(WireError):
    """Message of the other end that makes no sense; a sentence says why."""


class Travels(ABC):
    """A value that says itself how it travels; no dataclass."""

    @abstractmethod
    def to_json(self) -> Any:
        """The value for `encode`."""

    @classmethod
    @abstractmethod
    def from_json(cls, value: object) -> Self:
        """The value that has arrived; ProtocolError if it is none."""


def encode(value: object) -> Any:
    """Convert a value for `json.dumps`."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: object) -> object:
    """A value that msgspec can encode, for one that it cannot."""
    match value:
        case Travels():
            return value.to_json()
        case Mapping():
            return dict(cast("Mapping[str, object]", value))
        case str():
            return str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be sent")


def decode(kind: type[T], value: object, name: str = "value") -> T:
    """A value of this type, or ProtocolError."""
    wanted = _fields(kind)
    if wanted is not None and isinstance(value, dict) and value.keys() != wanted:
        raise _other_fields(name, cast("dict[str, object]", value).keys(), wanted)
    try:
        return msgspec.convert(value, kind, dec_hook=_arrived)
    except msgspec.ValidationError as error:
        # "Expected `int`, got `str` - at `$.member[0]`" is said as "join.member[0]: expected int, got str".
        says, _, place = str(error).replace("`", "").partition(" - at ")
        raise ProtocolError(f"{name}{place.removeprefix('$')}: {says[0].lower()}{says[1:]}") from None


@cache
def _fields(kind: type[Any]) -> frozenset[str] | None:
    """Names of the fields of a dataclass, all of which have to be there; msgspec ignores others."""
    return (
        frozenset(each.name for each in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
    )


def _other_fields(name: str, given: AbstractSet[str], wanted: AbstractSet[str]) -> ProtocolError:
    if missing := wanted - given:
        return ProtocolError(f"{name} has no field {', '.join(sorted(missing))}")
    return ProtocolError(f"{name} has an unknown field: {', '.join(sorted(given - wanted))[:_SHOWN]!a}")


def _arrived(kind: type[Travels], value: object) -> Travels:
    return kind.from_json(value)
