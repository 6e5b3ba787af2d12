"""A program made of what a script gives its trainer: the names that a program file would define."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import torch

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import kind_of
from recycle_runtime.trainer.given_model import GivenModel

Model = torch.nn.Module | Sequence[tuple[str, torch.nn.Module]] | Callable[[], Any]


def model_names(model: Any) -> tuple[dict[str, Any], GivenModel | None]:
    """The name under which a program gives such a model; and what the script must not use any more."""
    if isinstance(model, torch.nn.Sequential) and _is_its_children(model):
        given = GivenModel(model)
        # A process may build its chunk again, and must not find the parameters that it has trained.
        return {"layers": lambda: list(cast(torch.nn.Sequential, given.copy()).named_children())}, given
    if isinstance(model, torch.nn.Module):
        given = GivenModel(model)
        # Layers are copied as they are built.
        return {"model": lambda: given.kept}, given
    if isinstance(model, Sequence) and not isinstance(model, str | bytes):
        given = GivenModel(list(cast(Sequence[Any], model)))
        return {"layers": given.copy}, given
    if callable(model):
        return {"model": model}, None
    raise ProgramError(
        "the model must be a torch.nn.Module, a list of (name, module), or a function that builds one of "
        f"them, got {type(model).__name__}"
    )


def _is_its_children(model: torch.nn.Sequential) -> bool:
    """True if it does nothing but call one after the other; a subclass may do otherwise."""
    own = vars(model)
    extras = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    has_extras = any(own.get(name) for name in (*extras, "_parameters", "_buffers", "forward"))
    return type(model).forward is torch.nn.Sequential.forward and not has_extras


class GivenData:
    """The data of a script, which is known once it asks for its first step."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._given = threading.Event()
        self._data: Any = None

    def give(self, data: Any) -> None:
        """With each step; data that is read by index may take turns with other data of that kind."""
        if self._given.is_set() and data is not self._data:
            for each in (self._data, data):
                self._check_by_index(each)
        self._data = data
        self._given.set()

    def _check_by_index(self, data: Any) -> None:
        """Refuse a stream: its position depends on its use so far, which a joining worker does not know."""
        from recycle_runtime.data.sources import Stream, as_source

        if isinstance(as_source(self._script, data, "the data", 0), Stream):
            raise ProgramError(
                f"trainer.step was given other data than before, and {kind_of(data)} can only be read from "
                "its beginning to its end",
                "data that is read by index can take turns: recycle.Batches, a DataLoader of a map-style "
                "dataset, a sequence, or a function of the index",
            )

    def source(self, seed: int) -> Any:
        """As the function `data` of a program file."""
        self._given.wait()
        return self._data


@dataclass(frozen=True, slots=True)
class Items:
    """The micro-batches of an evaluation."""

    get: Callable[[int], Any]
    count: int

    def item(self, index: int) -> tuple[Any, Any]:
        from recycle_runtime.data.items import as_pair

        inputs, target = as_pair(self.get(index))
        return inputs, target

    def signature(self, index: int) -> str:
        from recycle_runtime.data.items import shape_signature

        return shape_signature(self.item(index)[0])


def evaluation_items(data: Any, microbatches: int | None) -> Items:
    """Of a sequence, an iterable that ends, or a function with the number of micro-batches beside it."""
    if callable(getattr(data, "microbatch", None)):
        count = len(data) if microbatches is None and hasattr(data, "__len__") else microbatches
        return Items(data.microbatch, _counted(count))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return Items(data.__getitem__, _counted(microbatches, len(data)))
    if isinstance(data, Iterable):
        # Not one more than asked for is taken of it.
        most = None if microbatches is None else max(microbatches, 0)
        drawn: list[Any] = list(islice(cast(Iterable[Any], data), most))
        return Items(drawn.__getitem__, _counted(microbatches, len(drawn)))
    if callable(data):
        return Items(data, _counted(microbatches))
    raise ProgramError(f"trainer.evaluate needs micro-batches (input, target), got {type(data).__name__}")


def _counted(wanted: int | None, there: int | None = None) -> int:
    """Number of micro-batches to evaluate, of as many as there are if that is known."""
    count = there if wanted is None else wanted
    if count is None:
        raise ProgramError("trainer.evaluate(data, microbatches=...): how many micro-batches there are")
    if count < 1:
        raise ProgramError("trainer.evaluate was given no micro-batch")
    if there is not None and there < count:
        raise ProgramError(f"trainer.evaluate(data, microbatches={count}): the data has {there} of them")
    return count
