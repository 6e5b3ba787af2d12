"""The state of one layer or stage in a folder: its description as JSON, its tensors as bytes in one file.

A state is taken apart into a tree and tensors with names (see `state.tree`). torch.distributed.checkpoint
writes and reads the tensors. Its own files are described by a pickle, which could execute anything when it is
read; here tensors are plain bytes, one after the other, and what describes them is JSON, so nothing that is
read is ever executed. Other threads of Python run meanwhile.
"""

import inspect
import os
import shutil
import sys
import warnings
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from recycle_runtime.checkpoint.dcp_reader import TensorReader
from recycle_runtime.checkpoint.manifest import (
    SHARD_FILE,
    SHARD_KIND,
    TENSORS_FILE,
    read_sealed,
    sync_folder,
    write_sealed,
)
from recycle_runtime.state.layer_state import Fields, check_about
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.tree import Tensors, put_together
from recycle_runtime.weights.tensor_bytes import bytes_of, size_of

_PIECE = 16 << 20


class TensorPlace(NamedTuple):
    """Of one tensor in the file."""

    offset: int
    size: int
    crc32: int


class ShardWriter(StorageWriter):
    """Writes `TENSORS_FILE` into a folder; `described` says afterwards what lies where in it."""

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
        with (self._folder / TENSORS_FILE).open("xb") as file:
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

    def _write(self, file: BinaryIO, tensor: torch.Tensor) -> TensorPlace:
        offset, checksum, data = file.tell(), 0, bytes_of(tensor)
        for start in range(0, len(data), _PIECE):
            self._proceed()
            piece = data[start : start + _PIECE]
            checksum = zlib.crc32(piece, checksum)
            file.write(piece)
        return TensorPlace(offset, len(data), checksum)


class ShardReader(TensorReader):
    """Reads what `ShardWriter` has written and described; CheckpointError when the file is not like that."""

    def __init__(self, folder: Path, described: dict[str, Fields]) -> None:
        self._path = folder / TENSORS_FILE
        self._places = {name: self._checked(name, about) for name, about in described.items()}
        needed = max((place.offset + place.size for _, place in self._places.values()), default=0)
        try:
            size = self._path.stat().st_size
        except OSError as error:
            raise CheckpointError(f"{self._path}: {(error.strerror or str(error)).lower()}") from None
        if size != needed:
            raise CheckpointError(f"{self._path}: damaged: {size} bytes long, expected {needed}")

    def room(self, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
        """Memory for these tensors, or for every one."""
        wanted = self._places if names is None else names
        return {name: torch.empty_like(self.described(name), device="cpu") for name in wanted}

    def described(self, name: str) -> torch.Tensor:
        """Type and shape of a tensor, without its memory."""
        return self._places[name][0]

    def described_tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor for name, (tensor, _) in self._places.items()}

    def fill(self, item: ReadItem, target: torch.Tensor) -> None:
        name = item.storage_index.fqn
        place = self._places[name][1]
        if size_of(target) != place.size:
            raise CheckpointError(f"{self._path}: only whole tensors can be read, not a slice of {name}")
        checksum, data = 0, bytes_of(target)
        with self._path.open("rb") as file:
            file.seek(place.offset)
            for start in range(0, place.size, _PIECE):
                piece = data[start : start + _PIECE]
                if file.readinto(piece) != len(piece):
                    raise CheckpointError(f"{self._path}: damaged: it ends within {name}")
                checksum = zlib.crc32(piece, checksum)
        if checksum != place.crc32:
            raise CheckpointError(f"{self._path}: damaged: the checksum of {name} does not match")

    def _checked(self, name: str, about: Fields) -> tuple[torch.Tensor, TensorPlace]:
        """A tensor without memory that shows type and shape, and where its bytes are."""
        if type(about) is not dict:
            about = {}
        dtype: Any = getattr(torch, str(about.get("dtype")), None)
        shape: Any = about.get("shape")
        numbers: list[Any] = [about.get(field) for field in TensorPlace._fields]
        counts: list[Any] = [*shape, *numbers] if isinstance(shape, list) else [None]
        if isinstance(dtype, torch.dtype) and all(type(count) is int and count >= 0 for count in counts):
            place = TensorPlace(*numbers)
            shaped = torch.empty(shape, dtype=dtype, device="meta")
            if place.size == size_of(shaped):
                return shaped, place
        raise CheckpointError(f"{self._path}: damaged: the description of {name} makes no sense")


_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
"""Every shard is written by one process, whatever groups there are."""


def write_shard(
    folder: Path, about: Fields, tree: Any, tensors: Tensors, proceed: Callable[[], None] = lambda: None
) -> int:
    """The folder is there as a whole or not at all; the checksum of its description."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    writer = ShardWriter(aside, proceed)
    try:
        _quietly(
            dcp.save, tensors, storage_writer=writer, planner=DefaultSavePlanner(flatten_state_dict=False)
        )
        fields = {"about": about, "byte_order": sys.byteorder, "tree": tree, "tensors": writer.described}
        checksum = write_sealed(aside / SHARD_FILE, SHARD_KIND, fields)
        aside.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return checksum


class ShardFiles:
    """A shard that can be read, whole or in part; CheckpointError when it is not as it was written."""

    def __init__(self, folder: Path, found: Fields) -> None:
        self.folder = folder
        about, described = found.get("about"), found.get("tensors")
        if not isinstance(about, dict) or not isinstance(described, dict):
            raise self.damaged
        self.about = cast(Fields, about)
        self._tree: Any = found.get("tree")
        self._described = cast(dict[str, Fields], described)
        self._reader = ShardReader(folder, self._described)

    @property
    def damaged(self) -> CheckpointError:
        return CheckpointError(f"{self.folder / SHARD_FILE}: damaged: it describes no state")

    def described(self, name: str) -> torch.Tensor:
        """Type and shape of a tensor, without its memory."""
        return self._reader.described(name)

    def read(self, names: Collection[str] | None = None) -> Tensors:
        """These tensors, or all."""
        room = self._reader.room(names)
        _quietly(
            dcp.load, room, storage_reader=self._reader, planner=DefaultLoadPlanner(flatten_state_dict=False)
        )
        return room

    def state(self) -> Any:
        """All of it."""
        return self._put_together(self.read())

    def outline(self) -> Any:
        """All of it, with types and shapes in place of tensors."""
        return self._put_together({name: self.described(name) for name in self._described})

    def _put_together(self, tensors: Tensors) -> Any:
        try:
            return put_together(self._tree, tensors)
        except (KeyError, TypeError, ValueError):
            raise self.damaged from None

    def entry(self, key: str) -> Any:
        """Value under a key of the state, which has no tensors."""
        try:
            return put_together(dict(cast(list[Any], self._tree["dict"]))[key], {})
        except (KeyError, TypeError, ValueError):
            raise self.damaged from None

    def tree_of(self, key: str) -> dict[Any, Any]:
        """Values with tensors under a key of the state, by name; KeyError if there is no such key."""
        rows = dict(cast(list[Any], self._tree["dict"]))
        return {name: value for name, value in cast(list[Any], rows[key]["dict"])}


def open_shard(folder: Path, checksum: int) -> ShardFiles:
    """The shard that a manifest names."""
    path = folder / SHARD_FILE
    found, actual = read_sealed(path, SHARD_KIND)
    if actual != checksum:
        raise CheckpointError(f"{path}: not the one that the manifest was written for")
    if found.get("byte_order") != sys.byteorder:
        raise CheckpointError(f"{path}: written on a machine with another byte order")
    return ShardFiles(folder, found)


def open_checked(folder: Path, about: Fields, checksum: int, *, accepts_changes: bool = False) -> ShardFiles:
    """The shard, if it is what was asked for; CheckpointError if not.

    `accepts_changes`: also if it was made by a program with another source.
    """
    shard = open_shard(folder, checksum)
    check_about(folder / SHARD_FILE, folder.parent, shard.about, about, accepts_changes=accepts_changes)
    return shard


def _quietly(does: Callable[..., Any], tensors: Tensors, **options: Any) -> None:
    """Without the remark that there is one process; an error is its cause, not what is wrapped around."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    try:
        does(tensors, **options, **_ALONE)
    except CheckpointException as error:
        causes = [cause for cause, _ in error.failures.values()]
        raise (causes[0] if causes else RuntimeError(str(error))) from None
