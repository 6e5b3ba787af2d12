"""From typed values to what JSON can say, and back with every field checked. Standard library only.

A dataclass travels as an object, a NamedTuple or a tuple as an array, bytes as base64. What comes back is
checked against the annotations: a field too many or too few, another type, or a number out of range is a
`ProtocolError` whose sentence says which.
"""

import base64
import binascii
import dataclasses
import operator
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

_LARGEST: Final = (1 << 63) - 1
_SHOWN: Final = 60

T = TypeVar("T")
Decoder = Callable[[object], Any]
"""Takes a value of JSON; _MisfitError if it is none of its type."""
Encoder = Callable[[Any], Any]


class WireError(ConnectionError):
    """The other end is gone, cannot be reached, or does not speak as it should."""


class UnreachableError(WireError):
    """Nobody listens there."""


class RefusalError(WireError):
    """Whoever listens there has answered, and it is not the coordinator, or will not have this process."""


class MismatchError(WireError):
    """Both ends were started in ways that do not go together: no use in trying again."""


class ProtocolError(WireError):
    """What the other end has said makes no sense; a sentence says why."""


class _MisfitError(Exception):
    """A value is not of its type. Where it stands is found out on the way up, since few ever fail."""

    def __init__(self, says: str, path: str = "") -> None:
        super().__init__(says, path)
        self.says, self.path = says, path

    def within(self, place: str) -> "_MisfitError":
        return _MisfitError(self.says, f"{place}{self.path}")


class Range(NamedTuple):
    """The least and the largest number that a field may have, written `Annotated[int, Range(0, 9)]`."""

    least: int
    largest: int


Natural = Annotated[int, Range(0, _LARGEST)]
"""A number of steps, bytes, workers and the like."""


class Travels(ABC):
    """A value that says itself how it travels."""

    @abstractmethod
    def to_json(self) -> Any:
        """What `json.dumps` takes."""

    @classmethod
    @abstractmethod
    def from_json(cls, value: object) -> Self:
        """The value that has arrived; ProtocolError if it is none."""


def encode(value: object) -> Any:
    """What `json.dumps` takes."""
    kind = type(value)
    return value if kind in _AS_THEY_ARE else _encoder(kind)(value)


_AS_THEY_ARE: Final = frozenset({str, int, float, bool, type(None)})


@cache
def _encoder(kind: type[Any]) -> Encoder:
    if issubclass(kind, Travels):
        return lambda value: value.to_json()
    if issubclass(kind, bytes):
        return lambda value: base64.b64encode(value).decode("ascii")
    if issubclass(kind, list | tuple):
        return lambda value: [
            item if type(item) in _AS_THEY_ARE else encode(item) for item in cast("list[object]", value)
        ]
    if issubclass(kind, Mapping):
        return lambda value: {key: encode(item) for key, item in cast("Mapping[str, object]", value).items()}
    if dataclasses.is_dataclass(kind):
        return _encoder_of_fields(tuple(each.name for each in dataclasses.fields(kind)))
    if issubclass(kind, str | int | float):
        return lambda value: value
    raise TypeError(f"{kind.__name__} cannot be sent")


def _encoder_of_fields(names: tuple[str, ...]) -> Encoder:
    if len(names) < 2:
        return lambda value: {name: encode(getattr(value, name)) for name in names}
    all_of = operator.attrgetter(*names)
    return lambda value: {
        name: item if type(item) in _AS_THEY_ARE else encode(item)
        for name, item in zip(names, all_of(value), strict=True)
    }


def decode(kind: type[T], value: object, name: str = "value") -> T:
    """A value of this type, or ProtocolError."""
    try:
        return cast(T, _decoder(kind)(value))
    except _MisfitError as error:
        raise ProtocolError(f"{name}{error.path} {error.says}") from None


@cache
def _decoder(kind: Any) -> Decoder:
    if isinstance(kind, type) and issubclass(kind, Travels):
        return kind.from_json
    if dataclasses.is_dataclass(kind):
        return _dataclass(cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(cast("type[Any]", kind))
    plain = _PLAIN.get(kind)
    return _generic(kind) if plain is None else plain


def _generic(kind: Any) -> Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _in_range(arguments[1])
    if origin in (Union, types.UnionType):
        return _optional(next(one for one in arguments if one is not types.NoneType))
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return _sequence(_decoder(arguments[0]))
    if origin is tuple:
        return _fixed([_decoder(one) for one in arguments])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(_decoder(arguments[1]))
    raise TypeError(f"{kind!r} is no type that messages have")


def _dataclass(kind: type[Any]) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    decoders = {each.name: _decoder(hints[each.name]) for each in dataclasses.fields(kind)}

    def decode_fields(value: object) -> object:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        fields = cast("dict[str, object]", value)
        if fields.keys() != decoders.keys():
            raise _other_fields(fields.keys(), decoders.keys())
        found: list[Any] = []
        try:
            for key, decoder in decoders.items():
                found.append(decoder(fields[key]))
        except _MisfitError as error:
            raise error.within(f".{list(decoders)[len(found)]}") from None
        return kind(*found)

    return decode_fields


def _other_fields(given: AbstractSet[str], wanted: AbstractSet[str]) -> _MisfitError:
    if missing := wanted - given:
        return _MisfitError(f"has no field {', '.join(sorted(missing))}")
    return _MisfitError(f"has an unknown field: {_shown(', '.join(sorted(given - wanted)))}")


def _named_tuple(kind: type[Any]) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    fixed = _fixed([_decoder(hints[each]) for each in kind._fields])
    return lambda value: kind(*fixed(value))


def _fixed(decoders: list[Decoder]) -> Decoder:
    def decode_items(value: object) -> tuple[Any, ...]:
        items = _list(value)
        if len(items) != len(decoders):
            raise _MisfitError(f"has {len(items)} values, not {len(decoders)}")
        return _decoded(zip(decoders, items, strict=True))

    return decode_items


def _sequence(decoder: Decoder) -> Decoder:
    return lambda value: _decoded((decoder, item) for item in _list(value))


def _decoded(pairs: Iterable[tuple[Decoder, object]]) -> tuple[Any, ...]:
    found: list[Any] = []
    try:
        for decoder, item in pairs:
            found.append(decoder(item))
    except _MisfitError as error:
        raise error.within(f"[{len(found)}]") from None
    return tuple(found)


def _mapping(decoder: Decoder) -> Decoder:
    def decode_items(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, "an object")
        found: dict[str, Any] = {}
        for key, item in cast("dict[str, object]", value).items():
            try:
                found[key] = decoder(item)
            except _MisfitError as error:
                raise error.within(f"[{_shown(key)}]") from None
        return found

    return decode_items


def _optional(decoder_of: Any) -> Decoder:
    decoder = _decoder(decoder_of)
    return lambda value: None if value is None else decoder(value)


def _in_range(allowed: Range) -> Decoder:
    least, largest = allowed

    def decode_number(value: object) -> int:
        # A bool is an int to Python, and none to anybody else.
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(value, "a whole number")
        if not least <= value <= largest:
            raise _MisfitError(f"is {_shown(str(value))}, not from {least} to {largest}")
        return value

    return decode_number


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise _MisfitError("is too large for a number") from None


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _str(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a text")
    return value


def _bytes(value: object) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, "bytes in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(value, "bytes in base64") from None


_PLAIN: Final[Mapping[Any, Decoder]] = {
    int: _in_range(Range(-_LARGEST, _LARGEST)),
    float: _float,
    bool: _bool,
    str: _str,
    bytes: _bytes,
}


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(value, "an array")
    return cast("list[object]", value)


def _wrong(value: object, wanted: str) -> _MisfitError:
    return _MisfitError(f"is {_shown(repr(value))}, not {wanted}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
