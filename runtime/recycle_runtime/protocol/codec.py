"""From typed values to what JSON can say, and back with every field checked. Standard library only.

A dataclass travels as an object, a NamedTuple or a tuple as an array, bytes as base64. What comes back is
checked against the annotations: a field too many or too few, another type, or a number out of range is a
`ProtocolError` whose sentence says which.
"""

import base64
import binascii
import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
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
Decoder = Callable[[object, str], Any]
"""Takes a value of JSON and the name of the field that it stands in."""


class WireError(ConnectionError):
    """The other end is gone, cannot be reached, or does not speak as it should."""


class UnreachableError(WireError):
    """Nobody listens there."""


class MismatchError(WireError):
    """Both ends were started in ways that do not go together: no use in trying again."""


class ProtocolError(WireError):
    """What the other end has said makes no sense; a sentence says why."""


class Range(NamedTuple):
    """The least and the largest number that a field may have, written `Annotated[int, Range(0, 9)]`."""

    least: int
    largest: int


Natural = Annotated[int, Range(0, _LARGEST)]
"""A number of steps, bytes, workers and the like."""


def encode(value: object) -> Any:
    """What `json.dumps` takes."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list | tuple):
        return [encode(item) for item in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in cast("Mapping[str, object]", value).items()}
    if dataclasses.is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    raise TypeError(f"{value!r} cannot be sent")


_AS_THEY_ARE: Final = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def decode(kind: type[T], value: object, name: str = "value") -> T:
    """A value of this type, or ProtocolError."""
    return cast(T, _decoder(kind)(value, name))


@cache
def _decoder(kind: Any) -> Decoder:
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

    def decode_fields(value: object, name: str) -> object:
        if not isinstance(value, dict):
            raise _wrong(value, name, "an object")
        fields = cast("dict[str, object]", value)
        if missing := decoders.keys() - fields.keys():
            raise ProtocolError(f"{name} has no field {', '.join(sorted(missing))}")
        if surplus := fields.keys() - decoders.keys():
            raise ProtocolError(f"{name} has an unknown field: {_shown(', '.join(sorted(surplus)))}")
        return kind(**{key: decoder(fields[key], f"{name}.{key}") for key, decoder in decoders.items()})

    return decode_fields


def _named_tuple(kind: type[Any]) -> Decoder:
    hints = get_type_hints(kind, include_extras=True)
    fixed = _fixed([_decoder(hints[each]) for each in kind._fields])
    return lambda value, name: kind(*fixed(value, name))


def _fixed(decoders: list[Decoder]) -> Decoder:
    def decode_items(value: object, name: str) -> tuple[Any, ...]:
        items = _list(value, name)
        if len(items) != len(decoders):
            raise ProtocolError(f"{name} has {len(items)} values, not {len(decoders)}")
        pairs = zip(decoders, items, strict=True)
        return tuple(decoder(item, f"{name}[{at}]") for at, (decoder, item) in enumerate(pairs))

    return decode_items


def _sequence(decoder: Decoder) -> Decoder:
    return lambda value, name: tuple(
        decoder(item, f"{name}[{at}]") for at, item in enumerate(_list(value, name))
    )


def _mapping(decoder: Decoder) -> Decoder:
    def decode_items(value: object, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, name, "an object")
        fields = cast("dict[str, object]", value)
        return {key: decoder(item, f"{name}[{_shown(key)}]") for key, item in fields.items()}

    return decode_items


def _optional(decoder_of: Any) -> Decoder:
    decoder = _decoder(decoder_of)
    return lambda value, name: None if value is None else decoder(value, name)


def _in_range(allowed: Range) -> Decoder:
    def decode_number(value: object, name: str) -> int:
        # A bool is an int to Python, and none to anybody else.
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(value, name, "a whole number")
        if not allowed.least <= value <= allowed.largest:
            raise ProtocolError(
                f"{name} is {_shown(str(value))}, not from {allowed.least} to {allowed.largest}"
            )
        return value

    return decode_number


def _float(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, name, "a number")
    try:
        return float(value)
    except OverflowError:
        raise ProtocolError(f"{name} is too large for a number") from None


def _bool(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, name, "true or false")
    return value


def _str(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(value, name, "a text")
    return value


def _bytes(value: object, name: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong(value, name, "bytes in base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(value, name, "bytes in base64") from None


_PLAIN: Final[Mapping[Any, Decoder]] = {
    int: _in_range(Range(-_LARGEST, _LARGEST)),
    float: _float,
    bool: _bool,
    str: _str,
    bytes: _bytes,
}


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong(value, name, "an array")
    return cast("list[object]", value)


def _wrong(value: object, name: str, wanted: str) -> ProtocolError:
    return ProtocolError(f"{name} is {_shown(repr(value))}, not {wanted}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
