"""The text of passes, of pipelines and of what a crash leaves behind; exact, and read back.

    split-backward                                                    a pass with default options
    assign-slots{effort={rules=16,exact=false},slow=[1:2=3@2]}        options that differ from their defaults

Options are the fields of the pass, with `-` in place of `_`. A value is a number, `true` or `false`, a worker
`pipeline:stage`, a slow worker `pipeline:stage=factor` (`@share` where its micro-batches are given), `none`,
`[a,b]` for a tuple, or `{...}` for fields of fields. White space separates the passes of a pipeline, and
stands nowhere else.

A reproducer is the IR that a pass was given below the passes that were to run:

    passes assign-slots{time-limit-ns=900000000} canonicalize-schedule insert-transfers assign-buffers
    graph
    job figure3
    ...
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.job import TextError
from recycle_compiler.ir.text import Level, parse_level, print_level
from recycle_compiler.passes.pipeline import AnyPass, PassError, run_passes
from recycle_compiler.scheduling.slow_workers import SlowWorker

PASSES = (
    "normalize-failures",
    "build-graph",
    "split-backward",
    "stagger-optimizer",
    "route-microbatches",
    "one-f-one-b",
    "assign-slots",
    "add-worker",
    "canonicalize-schedule",
    "insert-transfers",
    "assign-buffers",
    "rename-workers",
)
"""Every pass; its file and its class have the same name, and are loaded when they are asked for."""


def pass_class(name: str) -> type[AnyPass]:
    """The pass of this name; raises ValueError if there is none."""
    if name not in PASSES:
        raise ValueError(f"no pass is called `{name[:40]}`; there are {', '.join(PASSES)}")
    module = import_module(f"recycle_compiler.passes.{name.replace('-', '_')}")
    return cast(type[AnyPass], getattr(module, name.title().replace("-", "")))


def print_pass(step: AnyPass) -> str:
    """`name{option=value}`; options that are as by default are left out."""
    return step.name + _print_fields(step)


def parse_pass(text: str) -> AnyPass:
    """The inverse of `print_pass`; raises ValueError."""
    name, brace, _ = text.partition("{")
    kind = pass_class(name)
    try:
        return cast(AnyPass, _parse_fields(text.removeprefix(name) if brace else "{}", kind))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def print_passes(passes: tuple[AnyPass, ...]) -> str:
    """Passes in a row, as `parse_passes` reads them."""
    return " ".join(map(print_pass, passes))


def parse_passes(text: str) -> tuple[AnyPass, ...]:
    """The inverse of `print_passes`; raises ValueError."""
    return tuple(map(parse_pass, text.split()))


def check_fit(passes: tuple[AnyPass, ...], given: type[Level]) -> None:
    """Raise ValueError unless the first takes what is given and each other what the one before it gives."""
    for step in passes:
        takes, gives = _levels(type(step))
        if given is not takes:
            raise ValueError(f"{step.name} takes a {takes.__name__.lower()}, not a {given.__name__.lower()}")
        given = gives


def _levels(kind: type[AnyPass]) -> tuple[type[Level], type[Level]]:
    """In and Out of a class that is a Pass[In, Out]."""
    (base,) = cast(tuple[object], vars(kind)["__orig_bases__"])
    takes, gives = get_args(base)
    return takes, gives


def print_reproducer(value: Level, rest: tuple[AnyPass, ...]) -> str:
    """The text of a value and of the passes that are to run on it."""
    return f"passes {print_passes(rest)}".rstrip() + f"\n{print_level(value)}"


def parse_reproducer(text: str) -> tuple[Level, tuple[AnyPass, ...]]:
    """The inverse of `print_reproducer`; lines above it that start with `#` are skipped. Raises TextError."""
    lines = text.splitlines(keepends=True)
    above = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    words = lines[above].split(maxsplit=1) if above < len(lines) else []
    if not words or words[0] != "passes":
        raise TextError(above + 1, "expected `passes` and their names")
    try:
        passes = parse_passes("".join(words[1:]))
        value = parse_level("".join(lines[above + 1 :]))
        check_fit(passes, type(value))
    except ValueError as error:
        raise TextError(above + 1, str(error)) from error
    except TextError as error:
        raise TextError(error.line and error.line + above + 1, error.what) from error
    if broken := next(value.verify(), None):
        raise TextError(above + 2, f"the IR that begins here is not valid: {broken}")
    return value, passes


def write_reproducer(error: PassError) -> Path:
    """Write what a crash leaves to a new file in the folder for temporary files; returns its path."""
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix=f"recyclec-{error.rest[0].name}-", suffix=".txt", delete=False
    ) as file:
        file.write(print_reproducer(error.before, error.rest))
    return Path(file.name)


def reproduce(text: str) -> Level:
    """Run the passes of a reproducer on its IR: what they make, or the same crash."""
    value, passes = parse_reproducer(text)
    return run_passes(passes, value)


class _Form(NamedTuple):
    """Text form of values of a type."""

    print: Callable[[Any], str]
    parse: Callable[[str], object]
    expected: str


def _print_bool(value: bool) -> str:
    return "true" if value else "false"


def _parse_bool(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _parse_worker(text: str) -> Worker:
    pipeline, stage = text.split(":")
    return Worker(int(pipeline), int(stage))


def _print_slow(slow: SlowWorker) -> str:
    return f"{slow.worker}={slow.factor}" + ("" if slow.share is None else f"@{slow.share}")


def _parse_slow(text: str) -> SlowWorker:
    worker, rest = text.split("=")
    factor, at, share = rest.partition("@")
    return SlowWorker(_parse_worker(worker), Fraction(factor), int(share) if at else None)


_FORMS: dict[type, _Form] = {
    bool: _Form(_print_bool, _parse_bool, "true or false"),
    int: _Form(str, int, "a whole number"),
    Worker: _Form(str, _parse_worker, "a worker such as 1:2"),
    SlowWorker: _Form(_print_slow, _parse_slow, "a slow worker such as 1:2=3"),
}


def _print_value(value: object) -> str:
    if type(value) in _FORMS:
        return _FORMS[type(value)].print(value)
    if isinstance(value, tuple):
        return f"[{','.join(map(_print_value, cast(tuple[object, ...], value)))}]"
    return "none" if value is None else _print_fields(value) or "{}"


def _print_fields(value: object) -> str:
    chosen = [
        f"{one.name.replace('_', '-')}={_print_value(getattr(value, one.name))}"
        for one in _fields(type(value))
        if getattr(value, one.name) != _default(one)
    ]
    return f"{{{','.join(chosen)}}}" if chosen else ""


def _parse_value(text: str, kind: Any) -> object:
    """A value of this type: a class of _FORMS, a dataclass, a tuple of such, or one of these or None."""
    kinds = [one for one in get_args(kind) if one is not NoneType]
    if NoneType in get_args(kind):
        return None if text == "none" else _parse_value(text, kinds[0])
    if get_origin(kind) is tuple:
        return tuple(_parse_value(item, kinds[0]) for item in _items(text, "[]"))
    if is_dataclass(kind):
        return _parse_fields(text, cast(type, kind))
    form = _FORMS[kind]
    try:
        return form.parse(text)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise ValueError(f"expected {form.expected}, got `{text[:40]}`") from error


def _parse_fields(text: str, kind: type) -> object:
    hints = get_type_hints(kind)
    known = {one.name.replace("_", "-"): one.name for one in _fields(kind)}
    found: dict[str, object] = {}
    for item in _items(text, "{}"):
        option, equals, value = item.partition("=")
        if option not in known:
            there = f"options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"no option is called `{option[:40]}`; {there}")
        if not equals or known[option] in found:
            raise ValueError(f"option `{option}` has {'two values' if equals else 'no value'}")
        try:
            found[known[option]] = _parse_value(value, hints[known[option]])
        except ValueError as error:
            raise ValueError(f"option `{option}`: {error}") from error
    return kind(**found)


def _items(text: str, brackets: str) -> Iterator[str]:
    """Items between commas within brackets; brackets within an item are kept whole."""
    if len(text) < 2 or text[0] + text[-1] != brackets:
        raise ValueError(f"expected `{brackets[0]}...{brackets[1]}`, got `{text[:40]}`")
    depth, begin = 0, 1
    for position, letter in enumerate(text[:-1]):
        depth += (letter in "[{") - (letter in "]}")
        if depth == 0:
            raise ValueError(f"brackets do not match in `{text[:40]}`")
        if depth == 1 and letter == "," and position:
            yield text[begin:position]
            begin = position + 1
    if depth != 1:
        raise ValueError(f"brackets do not match in `{text[:40]}`")
    if begin > 1 or len(text) > 2:
        yield text[begin:-1]


def _fields(kind: type) -> tuple[Field[Any], ...]:
    return tuple(one for one in fields(kind) if one.compare) if is_dataclass(kind) else ()


def _default(one: Field[Any]) -> object:
    return one.default if one.default_factory is MISSING else one.default_factory()
