"""The bundle: all plans of a job in one file. Standard library only; nothing that is read is ever executed.

    magic       8 bytes
    version     2 bytes; all numbers here have their lowest byte first
    checksum    4 bytes: CRC-32 of everything that follows
    sizes       of index and body, 4 bytes each
    index       what is known about the plans, and where the streams lie: see bundle_index
    body        the encoded streams, each distinct one once: see codec

The checksum is looked at before anything else is believed, and every number of the index before it is used.
A stream is decoded when it is asked for.
"""

import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from recycle_runtime.plan.bundle_index import BundleError, Index, PlanEntry, pack_index, unpack_index
from recycle_runtime.plan.codec import Frame, decode_stream
from recycle_runtime.plan.isa import Instruction

__all__ = ["FORMAT_VERSION", "Bundle", "BundleError", "PlanEntry", "join_bundle"]

MAGIC = b"\x89plan\r\n\x1a"
"""No text file starts like this, and one that went through a change of line ends does not either."""
FORMAT_VERSION = 1
LARGEST_FILE = 1 << 30
_PREFIX = struct.Struct("<8sHIII")
_CHECKED_FROM = 14


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle(Index):
    """A bundle that has been read. Workers are (pipeline, stage)."""

    format_version: int
    body: bytes

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Bundle":
        """Read a file; BundleError when it is not a bundle as written, OSError when it cannot be read."""
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError("not a regular file")
        if status.st_size > LARGEST_FILE:
            raise BundleError(f"too large: {status.st_size} bytes, allowed are {LARGEST_FILE}")
        return cls.parse(Path(path).read_bytes())

    @classmethod
    def parse(cls, data: bytes) -> "Bundle":
        """The bundle in these bytes; BundleError when they are not one as it was written."""
        if not data:
            raise BundleError("not a bundle: it is empty")
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise BundleError("not a bundle: it does not begin like one")
        if len(data) < _PREFIX.size:
            raise BundleError(f"truncated: {len(data)} bytes long, at least {_PREFIX.size} expected")
        _, version, checksum, index_size, body_size = _PREFIX.unpack_from(data)
        if version > FORMAT_VERSION:
            raise BundleError(
                f"made by a newer recyclec: format {version}, this one reads up to {FORMAT_VERSION}"
            )
        if version < 1:
            raise BundleError(f"damaged: format {version} does not exist")
        expected = _PREFIX.size + index_size + body_size
        if len(data) < expected:
            raise BundleError(f"truncated: {len(data)} bytes long, expected {expected}")
        if len(data) > expected:
            raise BundleError(f"followed by other bytes: {len(data)} bytes long, expected {expected}")
        if zlib.crc32(data[_CHECKED_FROM:]) != checksum:
            raise BundleError("damaged: the checksum does not match")
        body = _PREFIX.size + index_size
        index = unpack_index(data[_PREFIX.size : body], body_size)
        values = {field.name: getattr(index, field.name) for field in fields(index)}
        return cls(format_version=version, body=data[body:], **values)

    @property
    def instructions(self) -> int:
        """How many instructions all streams of all plans hold together."""
        return sum(self.blobs[number].instructions for row in self.references for number in row)

    def find(self, failed_per_stage: Sequence[int]) -> int | None:
        """The first plan for so many failures in each stage, whichever workers they are."""
        for number, plan in enumerate(self.plans):
            counts = [0] * self.stages
            for _, stage in plan.failed:
                counts[stage] += 1
            if counts == list(failed_per_stage):
                return number
        return None

    def workers(self, plan: int) -> tuple[tuple[int, int], ...]:
        """The live workers of a plan, by stage, then pipeline."""
        failed = set(self.plans[plan].failed)
        grid = ((pipeline, stage) for stage in range(self.stages) for pipeline in range(self.pipelines))
        return tuple(worker for worker in grid if worker not in failed)

    def stream(self, plan: int, worker: tuple[int, int]) -> tuple[Instruction, ...]:
        """What the worker runs in this plan; KeyError when the plan has no such live worker."""
        data, count = self.encoded(plan, worker)
        stream = decode_stream(data, count, self.frame(worker))
        if stream is None:
            raise BundleError(self.undecodable(plan, worker))
        return stream

    def encoded(self, plan: int, worker: tuple[int, int]) -> tuple[bytes, int]:
        """The bytes of a worker's stream, and how many instructions they stand for."""
        pipeline, stage = worker
        failed = self.plans[plan].failed
        if worker in failed or not (0 <= pipeline < self.pipelines and 0 <= stage < self.stages):
            raise KeyError(f"plan {plan} has no live worker {pipeline}:{stage}")
        gone = sum(1 for lost in failed if (lost[1], lost[0]) < (stage, pipeline))
        blob = self.blobs[self.references[plan][stage * self.pipelines + pipeline - gone]]
        return self.body[blob.offset : blob.offset + blob.length], blob.instructions

    def frame(self, worker: tuple[int, int]) -> Frame:
        """What the codec must know about a worker."""
        pipeline, stage = worker
        return Frame(pipeline, stage == self.stages - 1, self.pipelines, self.microbatches)

    def undecodable(self, plan: int, worker: tuple[int, int]) -> str:
        """The sentence for a stream that its bytes do not stand for."""
        return f"damaged: the stream of worker {worker[0]}:{worker[1]} in plan {plan} cannot be decoded"


def join_bundle(index: Index, body: bytes) -> bytes:
    """The bytes of a whole bundle; `Bundle.parse` is the inverse."""
    packed = pack_index(index)
    if (size := _PREFIX.size + len(packed) + len(body)) > LARGEST_FILE:
        raise ValueError(f"the bundle would have {size} bytes, allowed are {LARGEST_FILE}")
    sizes = struct.pack("<II", len(packed), len(body))
    checksum = zlib.crc32(sizes + packed + body)
    return _PREFIX.pack(MAGIC, FORMAT_VERSION, checksum, len(packed), len(body)) + packed + body
