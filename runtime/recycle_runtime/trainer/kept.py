"""The state of a script's own objects, as it travels to a worker that joins and into checkpoints.

Written by `torch.save` and read by `torch.load(weights_only=True)`: tensors, numbers, strings and containers
of these. Nothing that arrives is executed.
"""

import io
import pickle
from typing import Any, Protocol

import torch

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import kind_of

_LARGEST = 64 << 20
"""Bytes: it is copied after every step."""


class KeepsState(Protocol):
    """As modules, optimizers, schedulers, samplers and loaders of torch are."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Kept:
    """Objects by name."""

    def __init__(self) -> None:
        self._objects: dict[str, KeepsState] = {}
        self._is_checked = False

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, name: str, thing: KeepsState) -> None:
        for method in ("state_dict", "load_state_dict"):
            if not callable(getattr(thing, method, None)):
                raise ProgramError(f"trainer.keep({name!r}, ...): {kind_of(thing)} has no {method}")
        if name in self._objects:
            raise ProgramError(f"trainer.keep: something is kept as {name!r} already")
        self._objects[name] = thing

    def pack(self) -> bytes:
        """All states, as they are now; nothing where nothing is kept."""
        if not self._objects:
            return b""
        buffer = io.BytesIO()
        torch.save({name: thing.state_dict() for name, thing in self._objects.items()}, buffer)
        data = buffer.getvalue()
        if len(data) > _LARGEST:
            raise ProgramError(
                f"what trainer.keep holds takes {len(data)} bytes, at most {_LARGEST} are possible: it is "
                "copied after every step"
            )
        if not self._is_checked:
            self._unpacked(data)
            self._is_checked = True
        return data

    def load(self, data: bytes) -> None:
        """Take over what another script of the job has packed."""
        if not data:
            return
        states = self._unpacked(data)
        if sorted(states) != sorted(self._objects):
            raise ProgramError(
                f"this script keeps {sorted(self._objects)}, and the state that it goes on with holds "
                f"{sorted(states)}"
            )
        for name, thing in self._objects.items():
            thing.load_state_dict(states[name])

    def _unpacked(self, data: bytes) -> dict[str, Any]:
        try:
            return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        except pickle.UnpicklingError:
            raise ProgramError(
                "what trainer.keep holds must be made of tensors, numbers, strings and containers of these"
            ) from None
