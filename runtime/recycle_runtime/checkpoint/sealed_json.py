"""JSON files that are whole or not there, with a checksum of their content. Standard library only."""

import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any, cast

Fields = dict[str, Any]

VERSION = 1
_LARGEST = 1 << 28


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be used: one sentence that begins with the file or the folder."""


def write_sealed(path: Path, kind: str, fields: Fields) -> int:
    """Write aside, then rename; the checksum of the content."""
    content = {"format": f"recycle {kind}", "version": VERSION, **fields}
    checksum = _checksum(content)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w", encoding="utf-8") as file:
        json.dump(content | {"crc32": checksum}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync_folder(path.parent)
    return checksum


def read_sealed(path: Path, kind: str) -> tuple[Fields, int]:
    """The fields and their checksum; CheckpointError when they are not as they were written."""
    content = _read(path)
    if content.pop("format", None) != f"recycle {kind}":
        raise CheckpointError(f"{path}: not a {kind} of recycle-run")
    version = content.pop("version", None)
    if isinstance(version, int) and version > VERSION:
        raise CheckpointError(
            f"{path}: made by a newer recycle-run: format {version}, this one reads up to {VERSION}"
        )
    checksum = content.pop("crc32", None)
    if version != VERSION or checksum != _checksum(
        {"format": f"recycle {kind}", "version": VERSION, **content}
    ):
        raise CheckpointError(f"{path}: damaged: the checksum does not match")
    assert isinstance(checksum, int)
    return content, checksum


def sync_folder(path: Path) -> None:
    """Names in a folder last only when the folder itself has reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> Fields:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            raise CheckpointError(f"{path}: damaged: not a file of a checkpoint")
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged: it is not JSON") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: damaged: it is not a JSON object")
    return cast(Fields, value)


def _checksum(content: Fields) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
