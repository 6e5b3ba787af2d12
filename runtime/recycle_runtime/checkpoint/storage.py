"""Tensors in one file, as torch.distributed.checkpoint writes and reads them.

Its own files are described by a pickle, which could execute anything when it is read. Here tensors are plain
bytes, one after the other, and what describes them is JSON. Other threads of Python run meanwhile.
"""

import os
import zlib
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.distributed.checkpoint import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    StorageReader,
    StorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from recycle_runtime.checkpoint.host_copy import bytes_of, size_of
from recycle_runtime.checkpoint.sealed_json import CheckpointError

FILE = "tensors.bin"
_PIECE = 16 << 20

Fields = dict[str, Any]


class Place(NamedTuple):
    """Of one tensor in the file."""

    offset: int
    size: int
    crc32: int


class PartWriter(StorageWriter):
    """Writes `FILE` into a folder; `described` says afterwards what lies where in it."""

    def __init__(self, folder: Path, proceed: Callable[[], None]) -> None:
        self._folder, self._proceed = folder, proceed
        """Called between pieces; what it raises ends the writing."""
        self.described: dict[str, Fields] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        # In a folder that is there: if it has been deleted, nobody wants this checkpoint any more.
        self._folder.mkdir()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        with (self._folder / FILE).open("xb") as file:
            for item in plan.items:
                tensor: Any = planner.resolve_data(item)
                place = self._write(file, tensor)
                results.append(WriteResult(index=item.index, size_in_bytes=place.size, storage_data=place))
            file.flush()
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index.fqn: result.storage_data for each in results for result in each}
        for name, about in metadata.state_dict_metadata.items():
            assert isinstance(about, TensorStorageMetadata)
            dtype = str(about.properties.dtype).removeprefix("torch.")
            self.described[name] = {"dtype": dtype, "shape": list(about.size), **places[name]._asdict()}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def _write(self, file: BinaryIO, tensor: torch.Tensor) -> Place:
        offset, checksum, data = file.tell(), 0, bytes_of(tensor)
        for start in range(0, len(data), _PIECE):
            self._proceed()
            piece = data[start : start + _PIECE]
            checksum = zlib.crc32(piece, checksum)
            file.write(piece)
        return Place(offset, len(data), checksum)


class PartReader(StorageReader):
    """Reads what `PartWriter` has written and described; CheckpointError when the file is not like that."""

    def __init__(self, folder: Path, described: dict[str, Fields]) -> None:
        self._path = folder / FILE
        self._places = {name: self._checked(name, about) for name, about in described.items()}
        self._metadata = Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(dtype=tensor.dtype),
                    tensor.shape,
                    [ChunkStorageMetadata(torch.Size([0] * tensor.dim()), tensor.shape)],
                )
                for name, (tensor, _) in self._places.items()
            }
        )
        needed = max((place.offset + place.size for _, place in self._places.values()), default=0)
        try:
            size = self._path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{self._path}: {(error.strerror or str(error)).lower()}") from None
        if size != needed:
            raise CheckpointError(f"{self._path}: damaged: {size} bytes long, expected {needed}")

    def room(self) -> dict[str, torch.Tensor]:
        """Memory for every tensor."""
        return {name: torch.empty_like(shaped, device="cpu") for name, (shaped, _) in self._places.items()}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one checkpoint to the next."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Everything has been looked at already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with self._path.open("rb") as file:
            for item in plan.items:
                name = item.storage_index.fqn
                target: Any = planner.resolve_tensor(item)
                self._read(file, name, target)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False

    def _read(self, file: BufferedReader, name: str, target: torch.Tensor) -> None:
        place = self._places[name][1]
        if size_of(target) != place.size:
            raise CheckpointError(f"{self._path}: only whole tensors can be read, not a slice of {name}")
        checksum, data = 0, bytes_of(target)
        file.seek(place.offset)
        for start in range(0, place.size, _PIECE):
            piece = data[start : start + _PIECE]
            if file.readinto(piece) != len(piece):
                raise CheckpointError(f"{self._path}: damaged: it ends within {name}")
            checksum = zlib.crc32(piece, checksum)
        if checksum != place.crc32:
            raise CheckpointError(f"{self._path}: damaged: the checksum of {name} does not match")

    def _checked(self, name: str, about: Fields) -> tuple[torch.Tensor, Place]:
        """A tensor without memory that shows type and shape, and where its bytes are."""
        if type(about) is not dict:
            about = {}
        dtype: Any = getattr(torch, str(about.get("dtype")), None)
        shape: Any = about.get("shape")
        numbers: list[Any] = [about.get(field) for field in Place._fields]
        counts: list[Any] = [*shape, *numbers] if isinstance(shape, list) else [None]
        if isinstance(dtype, torch.dtype) and all(type(count) is int and count >= 0 for count in counts):
            place = Place(*numbers)
            shaped = torch.empty(shape, dtype=dtype, device="meta")
            if place.size == size_of(shaped):
                return shaped, place
        raise CheckpointError(f"{self._path}: damaged: the description of {name} makes no sense")
