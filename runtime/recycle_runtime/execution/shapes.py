"""Tensors that cross the boundaries of a chunk, found out once for each shape of a micro-batch.

The first forward of a micro-batch of some shape shows what leaves the chunk; the store passes it on to the
next one, which waits for it before it asks for the first message of that shape. A forward comes before its
message in every plan, so no cycle of waits forms.

The shape of a micro-batch is known to the workers that load it, and sent to those between them.

A message of gradients is as long as the activations, with zeros where there is no gradient. The numbers of
tensors with a gradient are sent beside it, so that layers before a detached tensor are left as they are.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist

from recycle_runtime.data.items import ItemSpec
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.named_inputs import as_tuple
from recycle_runtime.transport.interface import TensorSpec

__all__ = ["Looks", "Shapes", "Specs", "as_tuple", "numbers_with_gradient"]

Specs = tuple[TensorSpec, ...]

_FIRST = "first"
"""Key that is set after the first backward of a chunk has published all that it has reached."""


class Shapes:
    """The boundaries of one chunk, by the signature of the micro-batch, for one tensor-parallel rank."""

    def __init__(
        self,
        store: dist.Store,
        chunk: int,
        tp_rank: int = 0,
        arriving: dict[str, Specs] | None = None,
        ranks: int = 1,
    ) -> None:
        """This process stands for so many `ranks`, and tells all of them."""
        # Messages go from rank to rank, and ranks may hold slices of different lengths.
        self._stores, self._chunk = _of_ranks("shape", store, tp_rank, ranks), chunk
        self._store = self._stores[0]
        self._arriving = {} if arriving is None else arriving
        """Shapes that are known already stay known when workers form a new group."""
        self._leaving: dict[str, Specs] = {}
        self._told: set[int] = set()
        self._has_told = False
        self._reached: set[int] = set()
        self._is_told = False
        """A backward of the next chunk has said what it reached."""

    def arriving(self, signature: str) -> Specs:
        """Tensors that come in from the previous chunk."""
        if signature not in self._arriving:
            self._arriving[signature] = _unpack(self._store.get(_key(signature, self._chunk)))
        return self._arriving[signature]

    def leaving(self, signature: str) -> Specs:
        """Tensors that have gone out to the next chunk."""
        return self._leaving[signature]

    def show(self, signature: str, outputs: Sequence[torch.Tensor]) -> None:
        """A forward has given this; the first of its signature is sent to the next chunk, and all others must
        look like it: how long a message is decides which way it goes."""
        if (known := self._leaving.get(signature)) is None:
            self._leaving[signature] = tuple(map(TensorSpec.of, outputs))
            for store in self._stores:
                store.set(_key(signature, self._chunk + 1), _pack(self._leaving[signature]))
        elif [(tensor.shape, tensor.dtype) for tensor in outputs] != list(known):
            raise ProgramError(
                f"what chunk {self._chunk} gives on was {_shown(known)} and is "
                f"{_shown(map(TensorSpec.of, outputs))} now, for inputs of the same shapes",
                "shapes inside the model may depend on the shapes of a micro-batch, and not on its numbers",
            )

    def tell_reached(self, numbers: Iterable[int]) -> None:
        """Publish which incoming tensors have a gradient, each once, before the gradient is sent back."""
        new = set(numbers) - self._told
        if not new and self._has_told:
            return
        self._told |= new
        self._has_told = True
        first = _reached_key(_FIRST, self._chunk)
        for store in self._stores:
            for number in new:
                store.set(_reached_key(number, self._chunk), "1")
            store.set(first, "1")
        # Setting is not answered: only what can be got is there before the gradient can be.
        self._stores[-1].get(first)

    def reached(self, numbers: Iterable[int], wait: Callable[[], object]) -> list[int]:
        """Those of the tensors given on that the next chunk's backwards have found gradients of.

        The host may be far ahead of the device: it waits until a backward has published its gradients, which
        happens before its message is sent in every plan. A tensor without one by then has one in few
        programs; for its sake all later messages are waited for (`wait`), since theirs are sent before them.
        """
        numbers = list(numbers)
        if numbers and not self._is_told:
            self._store.get(_reached_key(_FIRST, self._chunk + 1))
            self._is_told = True
        if not self._find(numbers):
            wait()
            self._find(numbers)
        return [number for number in numbers if number in self._reached]

    def _find(self, numbers: Sequence[int]) -> bool:
        """True once all of these are known to have had gradients."""
        missing = set(numbers) - self._reached
        self._reached |= {
            number for number in missing if self._store.check([_reached_key(number, self._chunk + 1)])
        }
        return missing <= self._reached


class Looks:
    """Shapes and types of micro-batches, from the workers that load them for the first chunk to those that
    only compute on them. All that are known when a step begins travel at once."""

    def __init__(
        self, store: dist.Store, tp_rank: int, worker: Worker, loaded_by: Mapping[int, Worker], ranks: int = 1
    ) -> None:
        """`loaded_by` says who loads what, by the number that a plan gives to each micro-batch or part. This
        process stands for so many `ranks`, and tells all of them."""
        self._stores = _of_ranks("look", store, tp_rank, ranks)
        self._store = self._stores[0]
        self._worker, self._loaded_by = worker, loaded_by
        self._told: dict[int, set[int]] = {}
        self._keys: dict[int, list[str]] = {}
        """Keys that were published, by step."""

    def tell(self, step: int, looks: Mapping[int, ItemSpec]) -> None:
        """All that are known by now of those that this worker loads in a step; each is sent once."""
        told = self._told.setdefault(step, set())
        keys = self._keys.setdefault(step, [])
        fresh = {index: look.packed() for index, look in looks.items() if index not in told}
        told.update(fresh)
        whole = _look_key(step, self._worker)
        values = (
            {f"{whole}/{index}": look for index, look in fresh.items()}
            if keys
            else {whole: json.dumps(fresh)}
        )
        for key, value in values.items():
            for store in self._stores:
                store.set(key, value)
        keys.extend(values)
        self._forget(step - 2)

    def ask(self, step: int, index: int, part: int) -> ItemSpec:
        """Of a micro-batch, once sent by the worker that loads this part of it (its number in the plan)."""
        key = _look_key(step, self._loaded_by[part])
        at_first: dict[str, str] = json.loads(self._store.get(key))
        if (found := at_first.get(str(index))) is not None:
            return ItemSpec.unpacked(found)
        return ItemSpec.unpacked(self._store.get(f"{key}/{index}").decode())

    def _forget(self, last: int) -> None:
        """Steps that no worker is in any more."""
        for step in [each for each in self._keys if each <= last]:
            del self._told[step]
            for key in self._keys.pop(step):
                for store in self._stores:
                    store.delete_key(key)


def _of_ranks(what: str, store: dist.Store, tp_rank: int, ranks: int) -> list[dist.Store]:
    return [dist.PrefixStore(f"{what}/{rank}", store) for rank in range(tp_rank, tp_rank + ranks)]


def numbers_with_gradient(inputs: Sequence[torch.Tensor]) -> list[int]:
    """Numbers of the incoming tensors for which a backward has found gradients."""
    return [number for number, tensor in enumerate(inputs) if tensor.grad is not None]


def _key(signature: str, chunk: int) -> str:
    return f"{chunk}/{signature}"


def _reached_key(number: int | str, chunk: int) -> str:
    return f"reached/{chunk}/{number}"


def _look_key(step: int, worker: Worker) -> str:
    return f"{step}/{worker_text(worker)}"


def _shown(specs: Iterable[TensorSpec]) -> str:
    return " ".join(f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)}" for spec in specs)


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
