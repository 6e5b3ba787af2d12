"""States taken apart: a tree of plain values that JSON can hold, and tensors by name.

Numbers, strings, None, bytes, lists, tuples and dictionaries are what modules, optimizers and schedules have
in their states.
"""

import base64
from typing import Any, cast

import torch

from recycle_runtime.state.names import CheckpointError

Tensors = dict[str, torch.Tensor]


def take_apart(state: Any) -> tuple[Any, Tensors]:
    """The state without its tensors, and these by name."""
    tensors: Tensors = {}
    return _take(state, "", tensors), tensors


def put_together(tree: Any, tensors: Tensors) -> Any:
    """The state; ValueError if this is none."""
    if not isinstance(tree, dict):
        return tree
    found = cast(dict[str, Any], tree)
    if len(found) != 1:
        raise ValueError("a value with several kinds")
    (kind, value), *_ = found.items()
    if kind == "tensor" and value in tensors:
        return tensors[value]
    if kind == "list":
        return [put_together(item, tensors) for item in value]
    if kind == "tuple":
        return tuple(put_together(item, tensors) for item in value)
    if kind == "dict":
        return {put_together(key, tensors): put_together(item, tensors) for key, item in value}
    if kind == "complex":
        return complex(*value)
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    raise ValueError(f"a value of an unknown kind: {kind}")


def _take(value: Any, where: str, tensors: Tensors) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        name = where
        while name in tensors:
            name += "'"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        rows = cast(dict[Any, Any], value).items()
        return {"dict": [[_key(key, where), _take(item, _join(where, key), tensors)] for key, item in rows]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        items = enumerate(cast(list[Any], value))
        return {kind: [_take(item, _join(where, number), tensors) for number, item in items]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    raise CheckpointError(f"{where}: a checkpoint cannot keep a value of type {type(value).__name__}")


def _key(key: Any, where: str) -> Any:
    if type(key) not in (str, int):
        raise CheckpointError(f"{where}: a checkpoint cannot keep a key of type {type(key).__name__}")
    return key


def _join(where: str, key: Any) -> str:
    return f"{where}/{key}" if where else str(key)
