"""The whole model of a checkpoint, under its own names, whichever stages and layers wrote it.

    weights = CheckpointWeights("kept/step-00000600")
    weights["transformer.h.0.attn.c_attn.weight"]             a tensor, read now

    dcp.load(model.state_dict(), storage_reader=CheckpointReader("kept/step-00000600"))

Every tensor is compared with its checksum when it is read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch.distributed.checkpoint.planner import ReadItem

from recycle_runtime.checkpoint.checkpoint_folder import CheckpointFolder
from recycle_runtime.checkpoint.dcp_reader import TensorReader
from recycle_runtime.checkpoint.manifest import Manifest
from recycle_runtime.checkpoint.storage import ShardFiles, open_shard
from recycle_runtime.execution.layer import SLICES
from recycle_runtime.execution.resident_experts import EXPERTS, FIRST, WEIGHTS
from recycle_runtime.state.names import CheckpointError, optimizers_of
from recycle_runtime.state.tree import put_together
from recycle_runtime.weights.tensor_bytes import size_of

_AVERAGED = "module."
"""In front of the names in an `AveragedModel`."""


class _Place(NamedTuple):
    """Of a tensor: the shards that have it, and what it is called there."""

    shards: tuple[ShardFiles, ...]
    """One, or those of all tensor-parallel ranks where each has a slice."""
    name: str
    dim: int = 0
    """Along which slices lie side by side."""

    def read(self) -> torch.Tensor:
        pieces = [shard.read([self.name])[self.name] for shard in self.shards]
        return torch.cat(pieces, self.dim) if len(pieces) > 1 else pieces[0]

    def described(self) -> torch.Tensor:
        pieces = [shard.described(self.name) for shard in self.shards]
        return torch.cat(pieces, self.dim) if len(pieces) > 1 else pieces[0]


class _Stack(NamedTuple):
    """Of experts: parts in order, which lie with the shards of their optimizer."""

    parts: tuple[_Place, ...]

    def read(self) -> torch.Tensor:
        return torch.cat([part.read() for part in self.parts])

    def described(self) -> torch.Tensor:
        return torch.cat([part.described() for part in self.parts])


class CheckpointWeights(Mapping[str, torch.Tensor]):
    """Parameters and buffers by name; CheckpointError if this is no complete checkpoint."""

    def __init__(
        self,
        folder: str | Path,
        tp_rank: int | None = None,
        dtype: str | None = None,
        *,
        average: bool = False,
    ) -> None:
        """`folder` is a checkpoint, or a folder of them, of which the newest is taken.

        With `dtype`, such as "bfloat16", floating-point tensors are converted to it. With `tp_rank` there is
        what that tensor-parallel rank has of each. With `average` there are the averages that the program's
        `moves_with_steps` keeps in an `AveragedModel`, in place of the weights.
        """
        self._takes_average = average
        self._dtype: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
        self.folder = newest_in(Path(folder))
        self.manifest = Manifest.read(self.folder)
        self._places: dict[str, _Place | _Stack] = {}
        self._has_average = False
        self.is_whole = True
        """False if only the program knows how to join the slices of ranks: then there are the first's."""
        ranks = range(self.manifest.shape.tensor) if tp_rank is None else (tp_rank,)
        first = f"-part-{ranks[0]}"
        for name in self.manifest.shape.shards:
            if name.endswith(first):
                each = [f"{name.removesuffix(first)}-part-{rank}" for rank in ranks]
                self._add(self._opened(each))
                self._add_experts(each)
        if average and not self._has_average:
            raise CheckpointError(
                f"{self.folder}: it holds no average of weights, which is what `moves_with_steps` keeps"
            )

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._converted(self._places[name].read())

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def described(self, name: str) -> torch.Tensor:
        """Type and shape of a tensor, without its memory."""
        return self._converted(self._places[name].described())

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(size_of(self.described(name)) for name in self)

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)

    def _opened(self, names: list[str]) -> list[ShardFiles]:
        return [open_shard(self.folder / name, self.manifest.shards[name]) for name in names]

    def _add_experts(self, names: list[str]) -> None:
        """Those of a layer or stage, on all ranks that are read."""
        found: dict[str, list[tuple[int, _Place]]] = {}
        prefix = ""
        for each in zip(*(optimizers_of(name, self.manifest.shards) for name in names), strict=True):
            shards = self._opened(list(each))
            prefix = str(shards[0].about.get("name", ""))
            slices = _slices(self._opened(names)) or {}
            for own, (first, stored) in _expert_names(shards[0]).items():
                whole = own in slices
                place = _Place(tuple(shards) if whole else (shards[0],), stored, slices.get(own, 0))
                found.setdefault(own, []).append((first, place))
        for own, parts in found.items():
            parts.sort(key=lambda part: part[0])
            self._places[f"{prefix}.{own}" if prefix else own] = _Stack(tuple(part for _, part in parts))

    def _add(self, shards: list[ShardFiles]) -> None:
        """Those of all ranks that are read."""
        shard, slices = shards[0], _slices(shards)
        self.is_whole &= slices is not None
        prefix = str(shard.about.get("name", ""))
        stored_names = _model_names(shard)
        if self._takes_average:
            averages = _average_names(shard)
            self._has_average |= bool(averages)
            stored_names |= {own: stored for own, stored in averages.items() if own in stored_names}
        for own, stored in stored_names.items():
            name = f"{prefix}.{own}" if prefix else own
            if name in self._places:
                raise CheckpointError(
                    f"{shard.folder}: {name} is in another stage too, so these names are not those of a "
                    "whole model: programs that give layers, or stages made by `cut`, have such names"
                )
            dim = None if slices is None else slices.get(own)
            self._places[name] = _Place((shard,), stored) if dim is None else _Place((*shards,), stored, dim)


class CheckpointReader(TensorReader):
    """A checkpoint for `torch.distributed.checkpoint.load`: `storage_reader=CheckpointReader(DIR)`."""

    def __init__(self, folder: str | Path) -> None:
        self._weights = CheckpointWeights(folder)

    def described_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self._weights.described(name) for name in self._weights}

    def fill(self, item: ReadItem, target: torch.Tensor) -> None:
        found = self._weights[item.storage_index.fqn]
        for dimension, (first, count) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            found = found.narrow(dimension, first, count)
        target.detach().copy_(found)


def newest_in(folder: Path) -> Path:
    """The folder itself if it is a checkpoint, else the newest complete one in it."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder")
    kept_folder = CheckpointFolder(folder)
    if not kept_folder.names():
        return folder
    found, damaged = kept_folder.look()
    if not found:
        raise CheckpointError(damaged[0] if damaged else f"{folder}: no checkpoint in it is complete")
    return folder / found[0].name


def _slices(shards: list[ShardFiles]) -> dict[str, int] | None:
    """Of the tensors of which each rank has a slice, along which dimension; None if that is not known."""
    if len(shards) == 1:
        return {}
    try:
        found: dict[str, Any] = put_together({"dict": list(shards[0].tree_of(SLICES).items())}, {})
        return {name: int(each["dim"]) for name, each in found.items()}
    except KeyError:
        return None


def _expert_names(shard: ShardFiles) -> dict[str, tuple[int, str]]:
    """Of a shard of optimizer state, stacked parameters: the first row that it has, and their names there."""
    try:
        rows = cast(dict[str, Any], shard.tree_of("state")).get(EXPERTS, {"dict": []})["dict"]
        parts = {name: dict(cast(list[Any], part["dict"])) for name, part in rows}
        return {name: (int(part[FIRST]), str(part[WEIGHTS]["tensor"])) for name, part in parts.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{shard.folder}: damaged: it describes no experts") from None


def _model_names(shard: ShardFiles) -> dict[str, str]:
    """Names of the module's tensors, each with its name in the shard."""
    try:
        state = cast(dict[str, Any], shard.tree_of("model"))
        return {name: cast(dict[str, str], value)["tensor"] for name, value in state.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{shard.folder}: damaged: it describes no model") from None


def _average_names(shard: ShardFiles) -> dict[str, str]:
    """The same for the average of the module, if one is kept."""
    try:
        kept = shard.tree_of("moving")
    except KeyError:
        return {}
    found: dict[str, str] = {}
    for part in kept.values():
        rows = cast(list[Any], part.get("dict", ())) if isinstance(part, dict) else []
        named = ((name, value) for name, value in rows if str(name).startswith(_AVERAGED))
        found |= {
            name.removeprefix(_AVERAGED): value["tensor"]
            for name, value in named
            if isinstance(value, dict) and "tensor" in value
        }
    return found
