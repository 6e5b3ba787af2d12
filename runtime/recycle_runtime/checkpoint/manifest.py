"""Manifest of a complete checkpoint. No torch.

The manifest is written last: without it there is no checkpoint. Like every other description in a checkpoint
it is a sealed JSON file: whole or not there, with a checksum of its content.
"""

import dataclasses
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.codec import Natural, ProtocolError, decode
from recycle_runtime.state.names import (
    LAYER,
    CheckpointError,
    are_whole,
    layer_shard_name,
    shard_name,
    without_optimizers,
)

Fields = dict[str, Any]

VERSION = 2
"""Shards by layer; those of version 1 are by stage, and read as ever."""
_LARGEST = 1 << 25
"""Bytes of a description; one of 100,000 shards, or of a shard with as many tensors, has less."""


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
    told = {"format": f"recycle {kind}", "version": version, **content}
    if version not in range(1, VERSION + 1) or checksum != _checksum(told):
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


FILE = "manifest.json"
SHARD_FILE = "part.json"
SHARD_KIND = "checkpoint part"
TENSORS_FILE = "tensors.bin"
_KIND = "checkpoint manifest"


@dataclass(frozen=True, slots=True)
class CheckpointShape:
    """Of the job that made a checkpoint, or wants to go on from one."""

    stages: Natural
    """As the program counts them: chunks of the model, where workers hold several."""
    pipelines: Natural
    tensor: Natural
    microbatches: Natural
    """Per pipeline and step."""
    layers: Natural = 0
    """Of the model, where shards are by layer; 0 where they are by stage."""

    @property
    def per_step(self) -> int:
        return self.pipelines * self.microbatches

    @property
    def shard_count(self) -> int:
        return (self.layers or self.stages) * self.tensor

    @property
    def shards(self) -> list[str]:
        """The folders that a checkpoint must have, beside those of optimizer state in shards."""
        name, count = (layer_shard_name, self.layers) if self.layers else (shard_name, self.stages)
        return [name(number, rank) for number in range(count) for rank in range(self.tensor)]

    def with_shards(self, names: Collection[str]) -> "CheckpointShape":
        """By layer or by stage, as these are."""
        is_by_layer = any(name.startswith(LAYER) for name in names)
        return replace(self, layers=len(without_optimizers(names)) // self.tensor if is_by_layer else 0)

    def is_made_of(self, names: Collection[str]) -> bool:
        """True if these are the shards of a whole model of this shape."""
        # Before the names are made: there may be said to be any number of them.
        is_many = len(without_optimizers(names)) == self.shard_count
        return is_many and are_whole(names, self.shards)


def shape_of(bundle: Bundle) -> CheckpointShape:
    """Of a job with these plans."""
    chunks = len(bundle.chunk_stages)
    return CheckpointShape(chunks, bundle.pipelines, bundle.tensor, bundle.microbatches, sum(bundle.cut))


_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Origin:
    """The job and the world that a checkpoint comes from; of their program and data, shards know."""

    job: str
    """The digest of the job with every number resolved."""
    cut: tuple[Natural, ...]
    """Layers of each chunk; empty where the job gives whole stages only."""
    workers: Natural
    """Workers that trained when it was made."""


def origin_of(bundle: Bundle) -> Origin:
    """Of a job with these plans, while nobody has failed."""
    job = hashlib.sha256(bundle.job_text.encode()).hexdigest()[:_DIGITS]
    return Origin(job, bundle.cut, bundle.present)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything beside the parameters."""

    step: Natural
    """Number of steps that the parameters have seen."""
    items: Natural
    """Number of micro-batches that these steps have taken from the program's sequence."""
    seed: Natural
    shape: CheckpointShape
    shards: dict[str, Natural]
    """The checksum of every shard's own description."""
    origin: Origin | None = None
    """None in checkpoints of older versions."""

    def write(self, folder: Path) -> None:
        """The checkpoint is complete once this returns."""
        fields = asdict(self)
        # The word of the format.
        fields["parts"] = fields.pop("shards")
        write_sealed(folder / FILE, _KIND, fields)

    @staticmethod
    def read(folder: Path) -> "Manifest":
        """CheckpointError unless the checkpoint is complete, as far as that shows without its tensors."""
        path = folder / FILE
        found, _ = read_sealed(path, _KIND)
        fields = {each.name: found.get(each.name) for each in dataclasses.fields(Manifest)}
        try:
            manifest = decode(Manifest, fields | {"shards": found.get("parts")}, "manifest")
        except ProtocolError as error:
            raise CheckpointError(f"{path}: damaged: {error}") from None
        if not manifest.shape.is_made_of(manifest.shards):
            raise CheckpointError(f"{path}: damaged: it does not name every stage or layer")
        for name in manifest.shards:
            if not (folder / name / SHARD_FILE).is_file():
                raise CheckpointError(f"{folder / name}: damaged: {SHARD_FILE} is missing")
        return manifest
