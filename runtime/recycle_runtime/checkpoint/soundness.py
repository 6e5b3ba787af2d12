"""Check that every byte of a checkpoint is as it was written. Needs no torch."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from recycle_runtime.checkpoint.manifest import (
    SHARD_FILE,
    SHARD_KIND,
    TENSORS_FILE,
    Fields,
    Manifest,
    read_sealed,
)
from recycle_runtime.state.names import CheckpointError

_PIECE = 16 << 20
_THREADS = 8
"""Checksums are computed without the interpreter lock."""


def check_sound(folder: Path, manifest: Manifest) -> None:
    """CheckpointError for the first shard that is not as it was written; reads all of them."""
    names = list(manifest.shards)
    with ThreadPoolExecutor(_THREADS) as threads:
        list(
            threads.map(
                check_shard, [folder / name for name in names], map(manifest.shards.__getitem__, names)
            )
        )


def check_shard(shard: Path, checksum: int) -> None:
    """CheckpointError unless it is as it was written; the manifest has the checksum."""
    found, actual = read_sealed(shard / SHARD_FILE, SHARD_KIND)
    if actual != checksum:
        raise CheckpointError(f"{shard / SHARD_FILE}: not the one that the manifest was written for")
    tensors = found.get("tensors")
    if not isinstance(tensors, dict):
        raise CheckpointError(f"{shard / SHARD_FILE}: damaged: it describes no state")
    path = shard / TENSORS_FILE
    described = sorted(cast(dict[str, Fields], tensors).items(), key=lambda item: _count(item[1], "offset"))
    try:
        with path.open("rb") as file:
            for name, about in described:
                file.seek(_count(about, "offset"))
                if _checksum(file, _count(about, "size")) != about.get("crc32"):
                    raise CheckpointError(f"{path}: damaged: the checksum of {name} does not match")
            if file.read(1):
                raise CheckpointError(f"{path}: damaged: it is too long")
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _checksum(file: Any, size: int) -> int:
    checksum = 0
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        checksum = zlib.crc32(piece, checksum)
        size -= len(piece)
    # What is missing counts too.
    return checksum if size == 0 else -1


def _count(about: Fields, field: str) -> int:
    value: object = about.get(field) if type(about) is dict else None
    return value if type(value) is int and value >= 0 else 0
