"""Whether a program defines what it should, found out before anything is built."""

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from recycle_runtime.program.errors import ProgramError, place

NEEDED = {
    "build_stage": ("stage", "stages"),
    "loss": ("output", "target"),
    "batches": ("seed",),
    "optimizer": ("parameters",),
}
"""The names that a program defines, and what each is called with."""


def check_names(path: Path, names: Mapping[str, Any]) -> None:
    """Raise for the first thing that keeps the program from being called as it will be."""
    if missing := [name for name in NEEDED if name not in names]:
        raise ProgramError(f"{path}: it does not define {_listed(missing)}", _hint(missing, names))
    for name, arguments in NEEDED.items():
        _check_call(path, name, names[name], arguments)


def takes_group(function: Callable[..., Any]) -> bool:
    """Whether `build_stage` has a parameter `group`."""
    signature = _signature(function)
    return signature is not None and "group" in signature.parameters


def clip_norm(path: Path, names: Mapping[str, Any]) -> float | None:
    """The limit on the gradient norm; None for no limit."""
    value = names.get("CLIP_NORM")
    if value is None:
        return None
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < value < math.inf:
        raise ProgramError(
            f"{path}: CLIP_NORM must be a number over 0, got {_short(value)}",
            "leave it out to clip nothing",
        )
    return float(value)


def first_line(path: Path, function: Any) -> int | None:
    """Where a function stands in the user's file."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename != str(path.absolute()):
        return None
    return code.co_firstlineno


def kind_of(value: Any) -> str:
    """What it is, for people."""
    return "nothing" if value is None else f"a value of type {type(value).__name__}"


def _check_call(path: Path, name: str, function: Any, arguments: tuple[str, ...]) -> None:
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise ProgramError(f"{path}: {name} must be a function, got {_short(function)}", f"define {call}")
    signature = _signature(function)
    if signature is None:
        return
    options = {"group": None} if name == "build_stage" and takes_group(function) else {}
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        where = place(path, first_line(path, function))
        raise ProgramError(
            f"{where}: {name}{signature} cannot be called as {call}: {error}",
            f"it is called as {call}, in this order"
            + (", with group=... if it has that keyword" if name == "build_stage" else ""),
        ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        # Not every callable tells; calling it will.
        return None


def _hint(missing: list[str], names: Mapping[str, Any]) -> str:
    own = [name for name in names if not name.startswith("_") and name not in NEEDED]
    close = [(name, found) for name in missing for found in get_close_matches(name, own, 1)]
    if close:
        return f"is `{close[0][1]}` meant to be `{close[0][0]}`?"
    calls = [f"{name}({', '.join(arguments)})" for name, arguments in NEEDED.items()]
    return f"a program defines {_listed(calls)}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
