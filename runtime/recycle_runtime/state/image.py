"""States as bytes: tensors one after the other, then their description as JSON.

    0    magic, where the description begins, its length and checksum     written last
    64   the bytes of all tensors
         {"name": "copy-00000020.3.1", "note": {}, "states": [{"name": ..., "about": ..., "tree": ..., ...}]}

Such an image lies in the memory of a node, or is sent to another process as it is. Nothing in it is executed
or unpickled, and every tensor has a checksum. A process that dies while it writes one leaves an image without
its magic, which counts as empty.
"""

import fcntl
import json
import mmap
import os
import struct
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from recycle_runtime.protocol.node_memory import empty
from recycle_runtime.state.host_copy import copied_into, places_of, size_together
from recycle_runtime.state.layer_state import (
    Fields,
    LayerState,
    check_about,
    on_device,
    together,
    with_tensors,
)
from recycle_runtime.state.names import CheckpointError
from recycle_runtime.state.tree import Tensors, put_together
from recycle_runtime.weights.tensor_bytes import as_type, bytes_of, size_of

_HEAD = struct.Struct("<8sQQL")
_MAGIC = b"recycle2"
_BEGIN = 64
"""Offset of the tensors, in bytes."""
_PIECE = 16 << 20
_LARGEST = 1 << 25
"""Bytes of a description."""
_LARGEST_CHECKSUM = (1 << 32) - 1
_CPU = torch.device("cpu")


def packed(name: str, states: Sequence[LayerState], note: Fields | None = None) -> torch.Tensor:
    """An image of these states. On a GPU the copies are made by the current stream, which is waited for."""
    tensors = together(states)
    end = _BEGIN + size_together(tensors)
    length = len(_description(name, states, note or {}, lambda _: _LARGEST_CHECKSUM))
    image = torch.empty(end + length, dtype=torch.uint8)
    copies = copied_into(image[_BEGIN:end], tensors)
    # JSON may end with spaces.
    text = _description(name, with_tensors(states, copies), note or {}).ljust(length)
    view = bytes_of(image)
    view[end:], view[: _HEAD.size] = text, _head(end, text)
    return image


class MemoryImage:
    """The image of a process's state in a file of its node's memory; the same memory is used each time."""

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

    def finish(self, name: str, states: Sequence[LayerState]) -> int:
        """Describe the copies that `take` has made for these states; bytes that the whole takes."""
        text = _description(name, states, {})
        os.pwrite(self._file, text, self._end)
        os.ftruncate(self._file, self._end + len(text))
        os.pwrite(self._file, _head(self._end, text), 0)
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return self._end + len(text)

    def _make_room(self, size: int) -> None:
        """OSError if there is not so much memory, before any of it is used."""
        os.posix_fallocate(self._file, 0, size)


class Image(NamedTuple):
    """States as they are found in memory, or have arrived."""

    name: str
    note: Fields
    states: tuple[Fields, ...]
    data: torch.Tensor
    """All bytes; what is in the file must not change as long as this is used."""

    @property
    def names(self) -> list[str]:
        return [str(state.get("name")) for state in self.states]

    def about(self, name: str) -> Fields:
        """The description of one of the states."""
        says: Any = self._found(name).get("about")
        if not isinstance(says, dict):
            raise self._damaged(name)
        return cast(Fields, says)

    def state(
        self,
        name: str,
        about: Fields | None = None,
        device: torch.device = _CPU,
        *,
        accepts_changes: bool = False,
    ) -> Any:
        """One of the states, with tensors of its own; CheckpointError if it is not what was asked for, or not
        as it was written."""
        found = self._found(name)
        if about is not None:
            source = Path(self.name) / name
            check_about(source, source.parent, self.about(name), about, accepts_changes=accepts_changes)
        if not isinstance(described := found.get("tensors"), dict):
            raise self._damaged(name)
        rows = cast(Fields, described).items()
        try:
            return put_together(
                found.get("tree"), {key: self._tensor(name, row, device) for key, row in rows}
            )
        except (KeyError, TypeError, ValueError):
            raise self._damaged(name) from None

    def _found(self, name: str) -> Fields:
        found = next((state for state in self.states if state.get("name") == name), None)
        if found is None:
            raise CheckpointError(f"{self.name}: {name} is not in it")
        return found

    def _tensor(self, name: str, row: Any, device: torch.device) -> torch.Tensor:
        dtype: Any = getattr(torch, str(row["dtype"]), None)
        offset, size, shape = int(row["offset"]), int(row["size"]), [int(each) for each in row["shape"]]
        if not isinstance(dtype, torch.dtype) or not _BEGIN <= offset <= offset + size <= len(self.data):
            raise self._damaged(name)
        if size != size_of(torch.empty(shape, dtype=dtype, device="meta")):
            raise self._damaged(name)
        data = self.data[offset : offset + size]
        if _checksum(data) != row["crc32"]:
            raise self._damaged(name)
        # The memory may be given back.
        return as_type(on_device(data, device), dtype, torch.Size(shape))

    def _damaged(self, name: str) -> CheckpointError:
        return CheckpointError(f"{self.name}: {name} is damaged in memory")


def images_in(files: Iterable[int], name: str) -> list[Image]:
    """Those with this name that lie in files of a node's memory."""
    found = (read_file(file) for file in files)
    return [image for image in found if image is not None and image.name == name]


def read_file(descriptor: int) -> Image | None:
    """The image in a file of a node's memory; None if that is nothing whole."""
    found = _described_in(descriptor)
    if found is None:
        return None
    size = os.fstat(descriptor).st_size
    data = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8) if size else torch.empty(0)
    return found._replace(data=data)


def _described_in(descriptor: int) -> Image | None:
    """The same without its tensors. It is read, not mapped: a file that another process makes shorter
    meanwhile would end this one."""
    head = os.pread(descriptor, _BEGIN, 0)
    if len(head) < _BEGIN:
        return None
    magic, begins, length, checksum = _HEAD.unpack_from(head)
    if magic != _MAGIC or length > _LARGEST:
        return None
    text = os.pread(descriptor, length, begins)
    is_whole = len(text) == length and begins + length == os.fstat(descriptor).st_size
    return _image(text, checksum, torch.empty(0)) if is_whole else None


def read_image(data: torch.Tensor) -> Image | None:
    """The image that these bytes are; None if that is nothing whole."""
    view = bytes_of(data)
    if len(view) < _BEGIN:
        return None
    magic, begins, length, checksum = _HEAD.unpack_from(view)
    if magic != _MAGIC or length > _LARGEST or begins + length != len(view):
        return None
    return _image(bytes(view[begins:]), checksum, data)


def _image(text: bytes, checksum: int, data: torch.Tensor) -> Image | None:
    """As it is described."""
    if zlib.crc32(text) != checksum:
        return None
    found: Fields = json.loads(text)
    return Image(str(found["name"]), dict(found["note"]), tuple(found["states"]), data)


def write_image(descriptor: int, data: torch.Tensor) -> None:
    """Write an image that another process has sent; it counts once this returns."""
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
    """Give the memory of all other images back; what is not whole is being written, or goes with the next."""
    for file in files:
        image = _described_in(file)
        if image is not None and image.name not in names:
            empty(file)


def _head(end: int, text: bytes) -> bytes:
    return _HEAD.pack(_MAGIC, end, len(text), zlib.crc32(text))


def _checksum(tensor: torch.Tensor) -> int:
    checksum, data = 0, bytes_of(tensor)
    for start in range(0, len(data), _PIECE):
        checksum = zlib.crc32(data[start : start + _PIECE], checksum)
    return checksum


def _description(
    name: str,
    states: Sequence[LayerState],
    note: Fields,
    checksum: Callable[[torch.Tensor], int] = _checksum,
) -> bytes:
    places, _ = places_of(together(states))
    described = [_described(state, places, checksum) for state in states]
    return json.dumps({"name": name, "note": note, "states": described}).encode()


def _described(state: LayerState, places: dict[str, int], checksum: Callable[[torch.Tensor], int]) -> Fields:
    """The offsets are those in the image."""
    tensors = {
        name: {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "offset": _BEGIN + places[f"{state.name}/{name}"],
            "size": size_of(tensor),
            "crc32": checksum(tensor),
        }
        for name, tensor in state.tensors.items()
    }
    return {"name": state.name, "about": state.about, "tree": state.tree, "tensors": tensors}
