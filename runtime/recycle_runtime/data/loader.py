"""A DataLoader taken apart: dataset, sampler and how a batch is made of samples; so any batch can be loaded.

The order of an epoch is what the sampler gives when it is asked for that epoch: the same as in a plain loop
over the loader where its generator is its own. Only indices are drawn for epochs that are past.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, DistributedSampler

from recycle_runtime.data.batches import fetched
from recycle_runtime.data.private_random import PrivateRandom
from recycle_runtime.data.processes import LoadingProcesses

_KEPT = 4096
"""Batches whose indices are kept, where epochs are short."""


class LoaderBatches:
    """The batches of a loader by number, through all epochs."""

    def __init__(self, loader: "DataLoader[Any]", seed: int) -> None:
        """`seed` is for a loader that draws its order from torch's own generator."""
        self._seed = seed
        whole: Any = loader
        sampler: Any = getattr(whole.batch_sampler, "sampler", whole.sampler)
        if isinstance(sampler, DistributedSampler):
            raise ValueError(
                "a DistributedSampler gives every process other samples, and here all must see the same: "
                "leave it out (shuffle=True shuffles alike on all workers)"
            )
        self._dataset: Any = whole.dataset
        self._sampler, self._order = sampler, whole.batch_sampler or whole.sampler
        self._is_batched: bool = whole.batch_sampler is not None
        self._collate: Callable[[Any], Any] = whole.collate_fn
        self._generator: torch.Generator | None = whole.generator
        self._first = _generator_states(whole.generator, getattr(sampler, "generator", None))
        self._count = len(whole)
        if self._count < 1:
            raise ValueError("the DataLoader has no batch")
        self.processes = (
            LoadingProcesses(
                whole.num_workers,
                whole.prefetch_factor,
                whole.multiprocessing_context,
                whole.worker_init_fn,
                whole.timeout,
            )
            if whole.num_workers
            else None
        )
        self._begin()

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._count

    def microbatch(self, number: int) -> Any:
        """One of them, counted through all epochs."""
        epoch, index = divmod(number, self._count)
        places = self._of_epoch(epoch)[index]
        if not self._is_batched:
            return self._collate(self._dataset[places])
        return self._collate(fetched(self._dataset, places))

    def prepare(self, number: int) -> None:
        """Know the order of its epoch; what that draws is drawn on the thread that calls this."""
        self._of_epoch(number // self._count)

    def _begin(self) -> None:
        self._random = PrivateRandom(self._seed)
        for generator, state in self._first:
            generator.set_state(state)
        self._epochs = 0
        self._orders: dict[int, Sequence[Any]] = {}

    def _of_epoch(self, epoch: int) -> Sequence[Any]:
        if epoch not in self._orders:
            if epoch < self._epochs:
                self._begin()
            kept = 2 + _KEPT // self._count
            while self._epochs <= epoch:
                orders = {**self._orders, self._epochs: self._next_order()}
                # Other threads look at it: what is there is never changed.
                self._orders = {each: order for each, order in orders.items() if each > epoch - kept}
                self._epochs += 1
        return self._orders[epoch]

    def _next_order(self) -> Sequence[Any]:
        """Of the next epoch, as the loader itself would have it."""
        if callable(set_epoch := getattr(self._sampler, "set_epoch", None)):
            set_epoch(self._epochs)
        with self._random.drawing():
            # A loader draws a number for its workers before it asks its sampler.
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            order = [_compact(batch) for batch in cast(Iterable[Any], self._order)]
        if len(order) != self._count:
            raise ValueError(
                f"the DataLoader has {self._count} batches, and its sampler gives {len(order)} in epoch "
                f"{self._epochs}"
            )
        return order


def _compact(places: Any) -> Any:
    """Indices in eight bytes each, where they are numbers."""
    if isinstance(places, list) and all(type(place) is int for place in cast(list[Any], places)):
        return array("q", cast(list[int], places))
    return places


def _generator_states(
    *generators: torch.Generator | None,
) -> list[tuple[torch.Generator, torch.Tensor]]:
    found = {id(generator): generator for generator in generators if generator is not None}
    return [(generator, generator.get_state()) for generator in found.values()]
