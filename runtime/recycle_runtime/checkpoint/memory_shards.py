"""Shards of a checkpoint in memory: tensors one after the other, then their description as JSON.

    0    magic, where the description begins, its length and checksum     written last
    64   the bytes of all tensors
         {"copy": "copy-00000020.3.1", "shards": [{"name": ..., "about": ..., "tree": ..., "tensors": ...}]}

Such a piece of memory can be sent to another node as it is. Nothing in it is executed or unpickled, and every
tensor has a checksum. A process that dies while it writes leaves a piece without its magic, which counts as
empty.
"""

import fcntl
import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.checkpoint.host_copy import copied_into, places_of, size_together
from recycle_runtime.checkpoint.manifest import CheckpointError
from recycle_runtime.checkpoint.storage import (
    PROGRAM,
    Fields,
    Tensors,
    check_about,
    check_program,
    put_together,
)
from recycle_runtime.checkpoint.writer import Shard, together
from recycle_runtime.protocol.node_memory import empty
from recycle_runtime.weights.tensor_bytes import as_type, bytes_of, size_of

_HEAD = struct.Struct("<8sQQL")
_MAGIC = b"recycle1"
_BEGIN = 64
"""Where the tensors begin."""
_PIECE = 16 << 20
_LARGEST = 1 << 25
"""Bytes of a description."""


class MemoryShards:
    """The shards of one process in one file of its node's memory; the same memory is used for each copy."""

    def __init__(self, descriptor: int) -> None:
        self._file = descriptor
        self._map: mmap.mmap | None = None
        """Kept: to see the memory of a file for the first time takes longer than to copy into it."""
        self._room: threading.Thread | None = None
        self._end = _BEGIN

    def prepare(self, tensors: Tensors) -> None:
        """Have memory for these soon: a thread sees to it, since new memory takes longer than the copy."""
        size = _BEGIN + size_together(tensors)
        self._room = threading.Thread(target=self._make_room, args=(size,), daemon=True)
        self._room.start()

    def take(self, tensors: Tensors) -> Tensors:
        """Copies of these, in the file; what was there before does not count any more."""
        if self._room is not None:
            self._room.join()
        # Nobody else may take the memory away from here on; the end of this process ends that too.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        self._end = _BEGIN + size_together(tensors)
        self._make_room(self._end)
        if self._map is None or len(self._map) < self._end:
            self._map = mmap.mmap(self._file, self._end)
        memory = torch.frombuffer(self._map, dtype=torch.uint8)
        memory[:_BEGIN].zero_()
        return copied_into(memory[_BEGIN : self._end], tensors)

    def finish(self, name: str, shards: list[Shard]) -> int:
        """Describe the copies that `take` has made for these shards; bytes that the whole takes."""
        places, _ = places_of(together(shards))
        described = [_described(shard, places) for shard in shards]
        text = json.dumps({"copy": name, "shards": described}).encode()
        os.pwrite(self._file, text, self._end)
        os.ftruncate(self._file, self._end + len(text))
        os.pwrite(self._file, _HEAD.pack(_MAGIC, self._end, len(text), zlib.crc32(text)), 0)
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return self._end + len(text)

    def _make_room(self, size: int) -> None:
        """OSError if there is not so much memory, before any of it is used."""
        os.posix_fallocate(self._file, 0, size)


class Piece(NamedTuple):
    """Shards in memory, as they are found there."""

    copy: str
    """The name of the copy that they belong to."""
    shards: tuple[Fields, ...]
    data: torch.Tensor
    """All bytes; what is in the file must not change as long as this is used."""

    @property
    def names(self) -> list[str]:
        return [str(shard.get("name")) for shard in self.shards]

    def state(self, name: str, about: Fields, *, accepts_changes: bool = False) -> Any:
        """Of one of the shards; CheckpointError if it is not what was asked for, or not as it was written."""
        found = next(shard for shard in self.shards if shard.get("name") == name)
        says, described = found.get("about"), found.get("tensors")
        if not isinstance(says, dict) or not isinstance(described, dict):
            raise _damaged(self.copy, name)
        told, source = cast(Fields, says), Path(self.copy) / name
        check_about(source, told, about, accepts_changes=accepts_changes)
        if not accepts_changes:
            check_program(source, told.get(PROGRAM), about.get(PROGRAM))
        rows = cast(dict[str, Any], described).items()
        try:
            return put_together(found.get("tree"), {key: self._tensor(name, row) for key, row in rows})
        except (KeyError, TypeError, ValueError):
            raise _damaged(self.copy, name) from None

    def _tensor(self, name: str, row: Any) -> torch.Tensor:
        dtype: Any = getattr(torch, str(row["dtype"]), None)
        offset, size, shape = int(row["offset"]), int(row["size"]), [int(each) for each in row["shape"]]
        if not isinstance(dtype, torch.dtype) or not _BEGIN <= offset <= offset + size <= len(self.data):
            raise _damaged(self.copy, name)
        if size != size_of(torch.empty(shape, dtype=dtype, device="meta")):
            raise _damaged(self.copy, name)
        # A copy, for the memory may be given back.
        data = self.data[offset : offset + size].clone()
        if _checksum(data) != row["crc32"]:
            raise _damaged(self.copy, name)
        return as_type(data, dtype, torch.Size(shape))


def pieces_in(files: Iterable[int], name: str) -> list[Piece]:
    """Those of this copy that lie in files of a node's memory."""
    found = (read_file(file) for file in files)
    return [piece for piece in found if piece is not None and piece.copy == name]


def read_file(descriptor: int) -> Piece | None:
    """What lies in a file of a node's memory; None if that is nothing whole."""
    size = os.fstat(descriptor).st_size
    if size < _BEGIN:
        return None
    return read_piece(torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8))


def read_piece(data: torch.Tensor) -> Piece | None:
    """What these bytes are; None if that is nothing whole."""
    view = bytes_of(data)
    magic, begins, length, checksum = _HEAD.unpack_from(view)
    if magic != _MAGIC or length > _LARGEST or begins + length != len(view):
        return None
    text = bytes(view[begins:])
    if zlib.crc32(text) != checksum:
        return None
    found: dict[str, Any] = json.loads(text)
    return Piece(str(found["copy"]), tuple(found["shards"]), data)


def write_piece(descriptor: int, data: torch.Tensor) -> None:
    """What another process has sent, as it is; it counts once this returns."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, bytes(_BEGIN), 0)
    os.posix_fallocate(descriptor, 0, len(data))
    os.ftruncate(descriptor, len(data))
    view = bytes_of(data)
    for start in range(_BEGIN, len(view), _PIECE):
        os.pwrite(descriptor, view[start : start + _PIECE], start)
    os.pwrite(descriptor, view[:_BEGIN], 0)
    fcntl.lockf(descriptor, fcntl.LOCK_UN)


def free_others(files: Iterable[int], names: Collection[str]) -> None:
    """Give the memory of all other copies back; what is not whole is being written, or goes with the next."""
    for file in files:
        piece = read_file(file)
        if piece is not None and piece.copy not in names:
            del piece
            empty(file)


def _described(shard: Shard, places: dict[str, int]) -> Fields:
    """The offsets are those in the file."""
    tensors = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "offset": _BEGIN + places[f"{shard.name}/{name}"],
            "size": size_of(tensor),
            "crc32": _checksum(tensor),
        }
        for name, tensor in shard.tensors.items()
    }
    return {"name": shard.name, "about": shard.about, "tree": shard.tree, "tensors": tensors}


def _checksum(tensor: torch.Tensor) -> int:
    checksum, data = 0, bytes_of(tensor)
    for start in range(0, len(data), _PIECE):
        checksum = zlib.crc32(data[start : start + _PIECE], checksum)
    return checksum


def _damaged(copy: str, name: str) -> CheckpointError:
    return CheckpointError(f"{copy}: {name} is damaged in memory")
