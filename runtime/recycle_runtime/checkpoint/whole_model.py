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
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.weights.tensor_bytes import size_of


class _Place(NamedTuple):
    """Of a tensor: its shard, and what it is called there."""

    shard: ShardFiles
    name: str


class CheckpointWeights(Mapping[str, torch.Tensor]):
    """Parameters and buffers by name; CheckpointError if this is no complete checkpoint."""

    def __init__(self, folder: str | Path, tp_rank: int = 0, dtype: str | None = None) -> None:
        """`folder` is a checkpoint, or a folder of them, of which the newest is taken.

        With `dtype`, such as "bfloat16", floating-point tensors are converted to it.
        """
        self._dtype: torch.dtype | None = None if dtype is None else getattr(torch, dtype)
        self.folder = newest_in(Path(folder))
        self.manifest = Manifest.read(self.folder)
        self._places: dict[str, _Place] = {}
        for name in self.manifest.shape.shards:
            if name.endswith(f"-part-{tp_rank}"):
                self._add(open_shard(self.folder / name, self.manifest.shards[name]))

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self._places[name]
        return self._converted(place.shard.read([place.name])[place.name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def described(self, name: str) -> torch.Tensor:
        """Type and shape of a tensor, without its memory."""
        place = self._places[name]
        return self._converted(place.shard.described(place.name))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(size_of(self.described(name)) for name in self)

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)

    def _add(self, shard: ShardFiles) -> None:
        prefix = str(shard.about.get("name", ""))
        for own, stored in _model_names(shard).items():
            name = f"{prefix}.{own}" if prefix else own
            if name in self._places:
                raise CheckpointError(
                    f"{shard.folder}: {name} is in another stage too, so these names are not those of a "
                    "whole model: programs that give layers, or stages made by `cut`, have such names"
                )
            self._places[name] = _Place(shard, stored)


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


def _model_names(shard: ShardFiles) -> dict[str, str]:
    """What the module calls its tensors, and what they are called in the shard."""
    try:
        state = cast(dict[str, Any], shard.tree_of("model"))
        return {name: cast(dict[str, str], value)["tensor"] for name, value in state.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{shard.folder}: damaged: it describes no model") from None
