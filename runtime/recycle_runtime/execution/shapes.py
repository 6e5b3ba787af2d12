"""What crosses the boundaries of a chunk, found out once for each shape of a micro-batch.

The first forward of a micro-batch of some shape shows what leaves the chunk; the store passes it on to the
next one, which waits for it before it asks for the first message of that shape. A forward comes before its
message in every plan, so nobody waits for somebody who waits.
"""

import json
from collections.abc import Sequence

import torch
import torch.distributed as dist

from recycle_runtime.transport.interface import TensorSpec

Specs = tuple[TensorSpec, ...]


class Shapes:
    """The boundaries of one chunk, by the signature of the micro-batch, for one tensor-parallel rank."""

    def __init__(
        self, store: dist.Store, chunk: int, tp_rank: int = 0, arriving: dict[str, Specs] | None = None
    ) -> None:
        # Messages go from rank to rank, and ranks may hold slices of different lengths.
        self._store, self._chunk = dist.PrefixStore(f"shape/{tp_rank}", store), chunk
        self._arriving = {} if arriving is None else arriving
        """What is known already stays known when workers are grouped anew."""
        self._leaving: dict[str, Specs] = {}

    def arriving(self, signature: str) -> Specs:
        """What comes in from the previous chunk."""
        if signature not in self._arriving:
            self._arriving[signature] = _unpack(self._store.get(_key(signature, self._chunk)))
        return self._arriving[signature]

    def leaving(self, signature: str) -> Specs:
        """What has gone out to the next chunk."""
        return self._leaving[signature]

    def show(self, signature: str, outputs: Sequence[torch.Tensor]) -> None:
        """A forward has given this; the first of its signature is told to the next chunk."""
        if signature not in self._leaving:
            self._leaving[signature] = tuple(map(TensorSpec.of, outputs))
            self._store.set(_key(signature, self._chunk + 1), _pack(self._leaving[signature]))


def as_tuple(value: torch.Tensor | Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """A chunk may give one tensor or several."""
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _key(signature: str, chunk: int) -> str:
    return f"{chunk}/{signature}"


def _pack(specs: Specs) -> str:
    return json.dumps([[str(spec.dtype).removeprefix("torch."), *spec.shape] for spec in specs])


def _unpack(text: bytes) -> Specs:
    rows: list[tuple[str, *tuple[int, ...]]] = json.loads(text)
    return tuple(TensorSpec(tuple(row[1:]), _dtype(row[0])) for row in rows)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name} is not a type of tensors")
    return found
