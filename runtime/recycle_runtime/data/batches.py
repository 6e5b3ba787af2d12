"""Micro-batches of a map-style dataset, by number.

    def data(seed):
        return recycle.Batches(dataset, 8, seed=seed)

    micro-batch   0 1 2 3 4 | 5 6 7 8 9 | 10 ...      5 micro-batches in an epoch
                  epoch 0     epoch 1     epoch 2

Which samples are in a micro-batch depends on seed, epoch and number alone, so any of them can be loaded by
any worker, and none has to be loaded before it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import default_collate

from recycle_runtime.data.processes import LoadingProcesses
from recycle_runtime.data.shuffling import Shuffled, mixed


class Batches:
    """`size` samples of a dataset in each micro-batch, without end: one epoch after the other."""

    def __init__(
        self,
        dataset: Any,
        size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = True,
        workers: int = 0,
    ) -> None:
        """`collate` makes (input, target) of a list of samples; by default torch's `default_collate`.

        An epoch leaves out what does not fill a micro-batch, since every micro-batch counts the same in a
        step; with `drop_last=False` the last one is smaller. `workers` processes load in the background;
        without them a thread does.
        """
        samples = len(dataset)
        count = samples // size if drop_last else -(-samples // size) if size > 0 else 0
        if size < 1 or count < 1:
            raise ValueError(f"{samples} samples make no micro-batch of {size}")
        if workers < 0:
            raise ValueError(f"workers must be at least 0, got {workers}")
        self._dataset, self._size, self._count, self._samples = dataset, size, count, samples
        self._shuffle, self._seed = shuffle, seed
        self._collate: Callable[[list[Any]], Any] = default_collate if collate is None else collate
        self.processes = LoadingProcesses(workers) if workers else None

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return self._count

    def microbatch(self, number: int) -> Any:
        """One of them, counted through all epochs."""
        return self._collate(fetched(self._dataset, self.samples(number)))

    def samples(self, number: int) -> list[int]:
        """The samples in a micro-batch, by their place in the dataset."""
        epoch, index = divmod(number, self._count)
        places = range(index * self._size, min((index + 1) * self._size, self._samples))
        if not self._shuffle:
            return list(places)
        order = Shuffled(self._samples, mixed(self._seed, epoch))
        return [order[place] for place in places]

    def epoch(self, number: int = 0) -> Iterator[Any]:
        """All micro-batches of an epoch, for a loop that trains without recyclec."""
        first = number * self._count
        return map(self.microbatch, range(first, first + self._count))


def fetched(dataset: Any, places: Sequence[Any]) -> list[Any]:
    """These samples, all at once where the dataset can (`__getitems__`, as DataLoader asks)."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(list(places)))
    return [dataset[place] for place in places]
