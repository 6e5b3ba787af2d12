"""Keys of a tensor-parallel plan that name no module of the model, which torch passes over.

`parallelize_module` warns of every key that a module does not have. A layer has some of a plan's, so these
warnings say nothing by themselves: a key is wrong if no layer has it.
"""

import sys
import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from fnmatch import fnmatchcase
from types import FrameType
from typing import Any

from torch import nn

_FUNCTION = "parallelize_module"
_WARNING = "Parallelize plan key"


@contextmanager
def unmatched_keys(module: nn.Module) -> Generator[set[str]]:
    """Keys of plans for this module itself that nothing in it answers to; other warnings are shown."""
    found: set[str] = set()
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def note(message: Warning | str, *place: Any) -> None:
            if not str(message).startswith(_WARNING):
                shown(message, *place)
            elif (key := _key(sys._getframe(), module)) is not None:  # pyright: ignore[reportPrivateUsage]
                found.add(key)

        warnings.filterwarnings("always", message=_WARNING)
        warnings.showwarning = note
        yield found


def _key(frame: FrameType | None, module: nn.Module) -> str | None:
    """As the plan has it: calls inside the first one have the rest of it."""
    key: str | None = None
    while frame is not None:
        if frame.f_code.co_name == _FUNCTION:
            is_whole = frame.f_locals.get("module") is module
            key = frame.f_locals.get("module_path") if is_whole else None
        frame = frame.f_back
    return key


def names_some(key: str, names: Iterable[str]) -> bool:
    """True if a key, which may have wildcards, is the name of one of these modules."""
    words = key.split(".")
    return any(
        len(parts) == len(words) and all(map(fnmatchcase, parts, words))
        for parts in (name.split(".") for name in names)
    )
