"""Tensors in safetensors files: a JSON header, then plain bytes.

    8 bytes    length of the header, little-endian
    header     {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
    bytes      of all tensors, one after the other, without gaps

A folder holds one such file, `model.safetensors`, or several and an index that says which name is in which:

    model-00001-of-00003.safetensors ...    model.safetensors.index.json

The library of the format reads; its writer takes all tensors at once. Here each is asked for when it is its
turn, so that a model can be written that does not fit into memory.
"""

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from recycle_runtime.files import reason, writing_whole
from recycle_runtime.weights.tensor_bytes import bytes_of, size_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_METADATA = "__metadata__"
_ALIGNED = 8

_WORDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


class WeightsError(RuntimeError):
    """Weights that cannot be used: one sentence that begins with the file or the folder."""


class SafetensorsFile(Mapping[str, torch.Tensor]):
    """The tensors of one file by name, each a view of the file's bytes in memory of this process alone."""

    def __init__(self, path: Path) -> None:
        """WeightsError if the file is damaged, or none of this kind."""
        try:
            from safetensors import SafetensorError, safe_open
        except ModuleNotFoundError:
            brings = "pip install 'recyclec[runtime]'"
            raise WeightsError(f"{path}: reading it needs safetensors, not installed: {brings}") from None
        self._path = path
        try:
            # The library does not say why a file cannot be opened.
            path.open("rb").close()
            self._file: Any = safe_open(path, framework="pt")
        except OSError as error:
            raise WeightsError(f"{path}: {reason(error)}") from None
        except SafetensorError as error:
            raise WeightsError(f"{path}: damaged, or not a safetensors file: {error}") from None
        self._names: dict[str, None] = dict.fromkeys(self._file.keys())

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            raise KeyError(name)
        try:
            return self._file.get_tensor(name)
        except AttributeError:
            raise WeightsError(f"{self._path}: {name} is of a type that this torch does not have") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
