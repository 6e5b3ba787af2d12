"""Tensors in safetensors files: a JSON header, then plain bytes.

    8 bytes    length of the header, little-endian
    header     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
    bytes      of all tensors, one after the other, without gaps

A folder holds one such file, `model.safetensors`, or several and an index that says which name is in which:

    model-00001-of-00003.safetensors ...    model.safetensors.index.json

Tensors that are read are views of the mapped file: memory is used when they are.
"""

import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch

from recycle_runtime.files import reason, writing_whole
from recycle_runtime.weights.tensor_bytes import bytes_of, size_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_LARGEST_HEADER = 100_000_000
"""As the format has it."""
_METADATA = "__metadata__"
_ALIGNED = 8

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_WORDS = {dtype: word for word, dtype in _DTYPES.items()}


class WeightsError(RuntimeError):
    """Weights that cannot be used: one sentence that begins with the file or the folder."""


class SafetensorsFile(Mapping[str, torch.Tensor]):
    """The tensors of one file by name, read when they are asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data, header, self._begin = _opened(path)
        self._about: dict[str, tuple[torch.dtype, tuple[int, ...], int, int]] = {}
        for name, about in header.items():
            if name != _METADATA:
                self._about[name] = self._checked(name, about)
        self._check_places()

    def __getitem__(self, name: str) -> torch.Tensor:
        dtype, shape, begin, end = self._about[name]
        if begin == end:
            return torch.empty(shape, dtype=dtype)
        assert self._data is not None
        offset = self._begin + begin
        if offset % dtype.itemsize:
            # The format aligns nothing but the header.
            whole = torch.frombuffer(self._data, dtype=torch.uint8, offset=offset, count=end - begin)
            return whole.clone().view(dtype).view(shape)
        count = (end - begin) // dtype.itemsize
        return torch.frombuffer(self._data, dtype=dtype, offset=offset, count=count).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._about)

    def __len__(self) -> int:
        return len(self._about)

    def _checked(self, name: str, about: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
        fields = cast(dict[str, Any], about) if isinstance(about, dict) else {}
        word, shape, places = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
        dtype = _DTYPES.get(word) if isinstance(word, str) else None
        if dtype is None:
            raise WeightsError(f"{self._path}: {name} is of type {word}, which this torch does not have")
        if not _are_counts(shape) or not _are_counts(places) or len(places) != 2:
            raise WeightsError(f"{self._path}: damaged: the description of {name} makes no sense")
        begin, end = places
        if end - begin != prod(shape) * dtype.itemsize:
            raise WeightsError(f"{self._path}: damaged: {name} has {end - begin} bytes for shape {shape}")
        return dtype, tuple(shape), begin, end

    def _check_places(self) -> None:
        """One after the other, to the end of the file."""
        at = 0
        for begin, end in sorted((begin, end) for _, _, begin, end in self._about.values()):
            if begin != at:
                raise WeightsError(f"{self._path}: damaged: tensors overlap, or leave a gap")
            at = end
        size = 0 if self._data is None else len(self._data)
        if self._begin + at != size:
            raise WeightsError(f"{self._path}: damaged: {size} bytes long, expected {self._begin + at}")


class SafetensorsFolder(Mapping[str, torch.Tensor]):
    """The tensors of all files that an index names."""

    def __init__(self, index: Path) -> None:
        self._folder = index.parent
        self._files: dict[str, SafetensorsFile] = {}
        self._where = _weight_map(index)
        for name, file in self._where.items():
            if file not in self._files:
                self._files[file] = SafetensorsFile(self._folder / file)
            if name not in self._files[file]:
                raise WeightsError(f"{index}: {name} is not in {file}")

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._files[self._where[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def write_folder(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    most_bytes: int,
    about: Mapping[str, torch.Tensor] | None = None,
) -> list[Path]:
    """As one file, or as several of at most so many bytes (or one tensor each) with an index.

    `about` has types and shapes, where tensors are read when they are asked for.
    """
    about = _about(tensors) if about is None else about
    groups = list(_groups(about, most_bytes))
    if len(groups) <= 1:
        path = folder / SINGLE
        write_file(path, tensors, about)
        return [path]
    where: dict[str, str] = {}
    written: list[Path] = []
    for number, names in enumerate(groups, 1):
        path = folder / f"model-{number:05}-of-{len(groups):05}.safetensors"
        write_file(path, tensors, {name: about[name] for name in names})
        where |= dict.fromkeys(names, path.name)
        written.append(path)
    # The index comes last: without it nobody takes the files for a whole model.
    total = sum(size_of(tensor) for tensor in about.values())
    index: dict[str, Any] = {
        "metadata": {"total_size": total},
        "weight_map": {name: where[name] for name in sorted(where)},
    }
    with writing_whole(folder / INDEX) as file:
        file.write((json.dumps(index, indent=2) + "\n").encode())
    return [*written, folder / INDEX]


def write_file(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, torch.Tensor] | None = None
) -> None:
    """One file, whole or not at all, of the tensors in `about`, or of all."""
    if sys.byteorder != "little":
        raise WeightsError(f"{path}: safetensors are little-endian, and this machine is not")
    about = _about(tensors) if about is None else about
    # `format` tells Hugging Face's loader that tensors are torch's.
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    at = 0
    # Large types first, so that every tensor is aligned.
    names = sorted(about, key=lambda name: (-about[name].element_size(), name))
    for name in names:
        shaped = about[name]
        word = _WORDS.get(shaped.dtype)
        if word is None:
            raise WeightsError(f"{path}: safetensors have no type for {shaped.dtype} of {name}")
        end = at + size_of(shaped)
        header[name] = {"dtype": word, "shape": list(shaped.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with writing_whole(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            whole = tensors[name].detach().cpu().contiguous()
            file.write(bytes_of(whole))


def _about(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().to("meta") for name, tensor in tensors.items()}


def _opened(path: Path) -> tuple[mmap.mmap | None, dict[str, Any], int]:
    """Its bytes, its header, and where tensors begin."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise WeightsError(f"{path}: not a safetensors file")
            text = file.read(length)
            # Private to this process: whoever changes a tensor changes no file.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise WeightsError(f"{path}: {reason(error)}") from None
    try:
        header: object = json.loads(text, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: damaged: its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: damaged: its header is not a JSON object")
    return data, cast(dict[str, Any], header), 8 + length


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands in it twice")
    return found


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content: object = json.loads(index.read_bytes())
    except OSError as error:
        raise WeightsError(f"{index}: {reason(error)}") from None
    except (ValueError, RecursionError):
        raise WeightsError(f"{index}: not JSON") from None
    where: object = cast(dict[str, Any], content).get("weight_map") if isinstance(content, dict) else None
    if not isinstance(where, dict) or not where:
        raise WeightsError(f"{index}: it has no `weight_map`")
    named = cast(dict[str, Any], where)
    for file in named.values():
        # A name, and no way out of the folder.
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise WeightsError(f"{index}: {file!r} is not the name of a file beside it")
    return named


def _groups(tensors: Mapping[str, torch.Tensor], most_bytes: int) -> Iterator[list[str]]:
    group: list[str] = []
    held = 0
    for name, tensor in tensors.items():
        size = size_of(tensor)
        if group and held + size > most_bytes:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    if group:
        yield group


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        type(each) is int and 0 <= each < 1 << 62 for each in cast(list[Any], value)
    )
