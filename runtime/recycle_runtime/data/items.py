"""One micro-batch: what it must be, what it looks like, and how a plan takes a part of it."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import kind_of


class ItemSpec(NamedTuple):
    """Types and shapes of a micro-batch, for workers that do not hold it."""

    signature: str
    """Types and shapes of its input, such as `int64[4,128]`."""
    samples: int | None
    """In each of its tensors; None where they differ."""

    def of_part(self, part: int, parts: int) -> str:
        """The signature of a part: that of the whole, with its samples."""
        if self.samples is None or parts == 1 or not self.is_divided(parts):
            return self.signature
        return f"{self.signature} {part_size(self.samples, part, parts)}/{self.samples}"

    def is_divided(self, parts: int) -> bool:
        """True if every part has a sample."""
        return self.samples is not None and self.samples >= parts

    def weight(self, part: int, parts: int) -> float:
        """Weight of the loss of a part in its micro-batch: its share of the samples.

        A micro-batch that cannot be split is computed whole for every part, and counts in the first.
        """
        if self.samples is None or not self.is_divided(parts):
            return float(part == 0)
        return part_size(self.samples, part, parts) / self.samples

    def packed(self) -> str:
        """As text, for a store."""
        return f"{'' if self.samples is None else self.samples}|{self.signature}"

    @classmethod
    def unpacked(cls, text: str) -> "ItemSpec":
        samples, _, signature = text.partition("|")
        return cls(signature, int(samples) if samples else None)


class Item(NamedTuple):
    """A micro-batch that was drawn."""

    pair: tuple[Any, Any]
    """Input and target."""
    look: ItemSpec
    versions: tuple[int, ...]
    """Version counter of each tensor when it was drawn: its number of changes in place."""

    @property
    def is_as_drawn(self) -> bool:
        """True if nobody has changed it in place."""
        inputs, target = self.pair
        if type(inputs) is torch.Tensor and type(target) is torch.Tensor:
            return self.versions == _versions_of_two(inputs, target)
        return self.versions == _versions(self.pair)

    def part(self, part: int, parts: int) -> tuple[Any, Any]:
        """Input and target of a part; of the whole, where it cannot be split."""
        return self.pair if parts == 1 or not self.look.is_divided(parts) else _part(self.pair, part, parts)


def plain_item(drawn: Any) -> Item | None:
    """Check the most common micro-batch, a pair of tensors: the same as `checked` at a tenth of the time."""
    if type(drawn) is not tuple or len(cast(tuple[Any, ...], drawn)) != 2:
        return None
    inputs, target = cast(tuple[Any, Any], drawn)
    if type(inputs) is not torch.Tensor or type(target) is not torch.Tensor:
        return None
    look = _look_of_two(inputs.dtype, inputs.shape, target.shape)
    return Item((inputs, target), look, _versions_of_two(inputs, target))


def checked(path: Path, drawn: Any, where: str) -> Item:
    """Check the value that the user's code has given as a micro-batch; `where` names it in errors."""
    drawn = as_pair(drawn)
    if not isinstance(drawn, tuple | list) or len(cast(list[Any], drawn)) != 2:
        raise ProgramError(f"{path}: {where} must be a pair (input, target), got {_describe(drawn)}")
    inputs, target = cast(tuple[Any, Any], tuple(cast(list[Any], drawn)))
    parts = list(_parts(inputs))
    if not parts or not all(isinstance(part, torch.Tensor) for part in parts):
        raise ProgramError(
            f"{path}: the input of {where} must be a tensor, a tuple of tensors or a dictionary of them, "
            f"got {_describe(inputs)}"
        )
    pair = inputs, target
    return Item(pair, ItemSpec(shape_signature(inputs), _samples(pair)), _versions(pair))


def as_pair(drawn: Any) -> Any:
    """A dictionary is an input of a model that computes its own loss: there is no target beside it."""
    return (cast(Any, drawn), ()) if isinstance(drawn, dict) else drawn


def same_values(one: Any, other: Any) -> bool:
    """True if two micro-batches are the same to the last bit; other values than tensors are not looked at."""
    ours, theirs = (
        [leaf for leaf in _leaves(item) if isinstance(leaf, torch.Tensor)] for item in (one, other)
    )
    return len(ours) == len(theirs) and all(
        left is right or (left.dtype == right.dtype and _same_bits(left, right))
        for left, right in zip(ours, theirs, strict=True)
    )


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def part_size(samples: int, part: int, parts: int) -> int:
    """The first parts have one more where it does not come out even, as torch splits them."""
    return samples // parts + (part < samples % parts)


def shape_signature(inputs: Any) -> str:
    """Types and shapes of a tensor or several, the same text on every worker."""
    names = [f"{name}:" for name in cast(dict[str, Any], inputs)] if isinstance(inputs, dict) else repeat("")
    return " ".join(
        f"{name}{_signature(part.dtype, part.shape)}"
        for name, part in zip(names, _parts(inputs), strict=False)
    )


@lru_cache(256)
def _look_of_two(dtype: torch.dtype, shape: torch.Size, target: torch.Size) -> ItemSpec:
    """Of an input of this type and shape, with a target of that shape."""
    counts = {sizes[0] if sizes else 0 for sizes in (shape, target)}
    samples = counts.pop() if len(counts) == 1 and 0 not in counts else None
    return ItemSpec(_signature(dtype, shape), samples)


def _signature(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"


def _samples(item: Any) -> int | None:
    """In every tensor, along its first dimension; None if tensors differ, have none, or there are other
    values, of which nobody knows whose they are."""
    values = list(_leaves(item))
    if not all(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values):
        return None
    counts = {len(value) for value in values}
    return counts.pop() if len(counts) == 1 and 0 not in counts else None


def _part(value: Any, part: int, parts: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tensor_split(parts)[part]
    if isinstance(value, dict):
        named = cast(dict[Any, Any], value)
        return {key: _part(each, part, parts) for key, each in named.items()}
    several = cast(list[Any] | tuple[Any, ...], value)
    made = [_part(each, part, parts) for each in several]
    if isinstance(value, tuple):
        # A named tuple takes its fields one by one.
        return type(several)(*made) if hasattr(several, "_fields") else tuple(made)
    return made


def _leaves(value: Any) -> Iterator[Any]:
    """Leaves of a value, through tuples, lists and dictionaries."""
    if isinstance(value, tuple | list | dict):
        parts = cast(dict[Any, Any], value).values() if isinstance(value, dict) else cast(list[Any], value)
        for part in parts:
            yield from _leaves(part)
    else:
        yield value


def _parts(inputs: Any) -> list[Any]:
    if isinstance(inputs, dict):
        return list(cast(dict[str, Any], inputs).values())
    return list(cast(list[Any], inputs)) if isinstance(inputs, tuple | list) else [inputs]


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        parts = cast(list[Any], value)
        return f"a {type(parts).__name__} of {len(parts)}: {', '.join(type(part).__name__ for part in parts)}"
    return kind_of(value)


def _versions(value: Any) -> tuple[int, ...]:
    tensors = (leaf for leaf in _leaves(value) if isinstance(leaf, torch.Tensor))
    return tuple(tensor._version for tensor in tensors if not tensor.is_inference())


def _versions_of_two(one: torch.Tensor, other: torch.Tensor) -> tuple[int, ...]:
    if one.is_inference() or other.is_inference():
        return _versions((one, other))
    return one._version, other._version
