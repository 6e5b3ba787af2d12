"""Kinds of data that a program may give, and their readers.

microbatch(index)           a function: micro-batch 0, 1, 2, ...
data(seed)                  gives a source, which is one of
    batches                 `Batches`, or whatever has `microbatch(index)`
    a DataLoader            of a map-style dataset: taken apart, so that any batch can be loaded
    a stream                iterable, with `state_dict` and `load_state_dict`
    a sequence              `source[index]`; one with a length begins again at its end
    any other iterable      as `batches(seed)`
    a function              as `microbatch(index)`
batches(seed)               an iterator over all micro-batches; a new one at its end

What is read by index is drawn only where it is needed, and ahead; the rest is drawn one after the other.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset

from recycle_runtime.data.loader import LoaderBatches
from recycle_runtime.data.processes import LoadingProcesses
from recycle_runtime.program.errors import ProgramError, blame
from recycle_runtime.program.loading import Program, kind_of


@dataclass(frozen=True, slots=True)
class Indexed:
    """Micro-batches by index."""

    name: str
    """Function that gives the items, such as `data(0)`; micro-batches are named after it."""
    get: Callable[[int], Any]
    epoch: int | None = None
    """Micro-batches of an epoch, where that is known."""
    processes: LoadingProcesses | None = None
    """Processes to load with, if the user asks for some."""
    prepare: Callable[[int], None] | None = None
    """To be called with the number of a micro-batch before a thread draws it."""
    in_memory: bool = False
    """True if they lie in a list, and drawing one is no work."""

    def called(self, number: int) -> str:
        """A micro-batch, for people."""
        return (
            f"microbatch({number})" if self.name == "microbatch" else f"micro-batch {number} of {self.name}"
        )


@dataclass(frozen=True, slots=True)
class Stream:
    """Micro-batches in their order, from the first."""

    name: str
    begin: Callable[[], Iterator[Any]]
    """Called for every epoch."""
    state: Callable[[], Any] | None = None
    """Function that returns the position of the stream."""
    load: Callable[[Any], None] | None = None
    """Go there; the next `begin` goes on from it."""

    def called(self, number: int) -> str:
        """A micro-batch, for people."""
        return f"micro-batch {number} of {self.name}"


Source = Indexed | Stream


def source_of(program: Program, seed: int) -> Source:
    """Source of data that a program defines."""
    if program.gives_data == "microbatch":
        return Indexed("microbatch", program.microbatch)
    if program.gives_data == "batches":
        return Stream(f"batches({seed})", lambda: program.batches(seed))
    return as_source(program.path, program.data(seed), f"data({seed})", seed)


def as_source(path: Path, given: Any, name: str, seed: int) -> Source:
    """A source that was given as it is; `seed` is for what does not bring its own."""
    if callable(read := getattr(given, "microbatch", None)):
        return Indexed(name, read, _length(given), _processes(given))
    has_state = callable(getattr(given, "state_dict", None)) and callable(
        getattr(given, "load_state_dict", None)
    )
    if has_state and isinstance(given, Iterable):
        stream = cast(Any, given)
        return Stream(name, lambda: iter(stream), stream.state_dict, stream.load_state_dict)
    if isinstance(given, DataLoader):
        return _of_loader(path, cast("DataLoader[Any]", given), name, seed)
    if hasattr(given, "__getitem__") and not isinstance(given, dict | str | bytes | IterableDataset):
        return _of_sequence(given, name)
    if isinstance(given, Iterable):
        return Stream(name, lambda: iter(cast(Iterable[Any], given)))
    if callable(given):
        return Indexed(name, given)
    raise ProgramError(
        f"{path}: {name} must be micro-batches by index, a DataLoader or an iterable, got {kind_of(given)}"
    )


def _of_loader(path: Path, loader: "DataLoader[Any]", name: str, seed: int) -> Source:
    if isinstance(loader.dataset, IterableDataset):
        return Stream(name, lambda: iter(loader))
    with blame(path, name):
        batches = LoaderBatches(loader, seed)
    return Indexed(name, batches.microbatch, len(batches), batches.processes, batches.prepare)


def _of_sequence(given: Any, name: str) -> Indexed:
    length = _length(given)
    if length is None:
        return Indexed(name, given.__getitem__)
    if type(given) in (list, tuple):
        # A script may make it longer or shorter between two steps.
        return Indexed(name, lambda number: given[number % len(given)], length, in_memory=True)
    return Indexed(name, lambda number: given[number % length], length)


def _processes(given: Any) -> LoadingProcesses | None:
    found = getattr(given, "processes", None)
    return found if isinstance(found, LoadingProcesses) else None


def _length(given: Any) -> int | None:
    """Of something that says it; a length of 0 is nothing to read from."""
    if not hasattr(given, "__len__"):
        return None
    if (length := len(given)) == 0:
        raise ProgramError(f"{type(given).__name__} holds no micro-batch")
    return length
