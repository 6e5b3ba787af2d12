"""The bundle: all plans of a job in one file. Standard library only; nothing that is read is ever executed.

    magic       8 bytes
    version     2 bytes; all numbers here have their lowest byte first
    checksum    4 bytes: CRC-32 of everything that follows
    hash        32 bytes: SHA-256 of the index, which has that of every plan
    sizes       4 bytes each: the index before it was packed; how many plans and re-cuts; the packed index,
                every packed plan, every re-cut
    index       what is known about the plans, and how their streams lie: see bundle_index
    plans       the columns of each, packed one by one: see codec
    re-cuts     a bundle each: the same model cut into other stages, for a job in layers

Packing is zlib's. The hash is of what was packed: the same job, version and seed give the same hash
everywhere, even where another zlib packs the same bytes differently. The checksum is looked at before
anything else is believed, every size before anything is unpacked, and every number of the index before it is
used. A plan is unpacked, and its hash looked at, when one of its streams is asked for.
"""

import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from pathlib import Path

from recycle_runtime.files import naming
from recycle_runtime.plan.bundle_index import (
    BundleError,
    ColumnLayout,
    Index,
    PlanEntry,
    pack_index,
    unpack_index,
)
from recycle_runtime.plan.codec import Columns, decode_stream, unpack_bytes
from recycle_runtime.plan.isa import Instruction
from recycle_runtime.plan.worker_ids import Worker, worker_text

__all__ = [
    "FORMAT_VERSION",
    "Bundle",
    "BundleError",
    "ColumnLayout",
    "PlanEntry",
    "bundle_alone",
    "digest_of",
    "join_bundle",
]

MAGIC = b"\x89plan\r\n\x1a"
"""No text file starts like this, and one that went through a change of line ends does not either."""
FORMAT_VERSION = 3
LARGEST_FILE = 1 << 30
LARGEST_INDEX = 1 << 28
"""Before it is packed."""
PACKING = 6
"""The level of zlib: 9 takes several times as long for a few percent."""
_AGAIN = "; copy it again, or compile the job again"
_PREFIX = struct.Struct("<8sHI32sII")
_CHECKED_FROM = 14
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle(Index):
    """A bundle that has been read. Workers are (pipeline, stage)."""

    format_version: int
    content_hash: str
    """Of everything in the bundle, as 64 hexadecimal digits: equal hashes, equal plans."""
    packed_plans: tuple[bytes, ...]
    recuts: tuple["Bundle", ...] = ()
    """Plans of the same model cut into other stages, one bundle for each cut."""
    _unpacked: dict[int, Columns] = field(default_factory=dict[int, Columns], repr=False)
    """The plan that was asked for last."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Bundle":
        """Read a file; BundleError when it is not a bundle as written, OSError when it cannot be read."""
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError("not a regular file")
        if status.st_size > LARGEST_FILE:
            raise BundleError(f"too large: {status.st_size} bytes, allowed are {LARGEST_FILE}")
        with naming(path):
            data = Path(path).read_bytes()
        return cls.parse(data)

    @classmethod
    def parse(cls, data: bytes, *, is_recut: bool = False) -> "Bundle":
        """The bundle in these bytes; BundleError when they are not one as it was written."""
        blocks = _split(data)
        _, version, _, digest, index_size, _ = _PREFIX.unpack_from(data)
        unpacked = unpack_bytes(blocks[0], index_size)
        if unpacked is None:
            raise BundleError("damaged: the index cannot be unpacked")
        if hashlib.sha256(unpacked).digest() != digest:
            raise BundleError("damaged: its content does not have the hash that it states")
        index = unpack_index(unpacked)
        plans, recuts = len(index.plans), len(index.recut_digests)
        if plans + recuts != len(blocks) - 1:
            raise BundleError(
                f"damaged: {plans} plans and {recuts} re-cuts in its index, {len(blocks) - 1} in the file"
            )
        values = {each.name: getattr(index, each.name) for each in fields(index)}
        return cls(
            format_version=version,
            content_hash=digest.hex(),
            packed_plans=tuple(blocks[1 : 1 + plans]),
            recuts=_parse_recuts(index, blocks[1 + plans :], is_recut=is_recut),
            **values,
        )

    @property
    def vacant(self) -> tuple[Worker, ...]:
        """Cells of the grid for which the job has no worker: those that its first plan leaves out."""
        return self.plans[0].failed if self.job_line("vacant") else ()

    @property
    def present(self) -> int:
        """Workers that the job begins with."""
        return self.stages * self.pipelines - len(self.vacant)

    @property
    def instructions(self) -> int:
        """Number of instructions in all streams of all plans together."""
        return sum(sum(layout.lengths) for layout in self.layouts)

    def find(self, failed_per_stage: Sequence[int]) -> int | None:
        """The first plan for so many failures in each stage, whichever workers they are."""
        for number, plan in enumerate(self.plans):
            counts = [0] * self.stages
            for _, stage in plan.failed:
                counts[stage] += 1
            if counts == list(failed_per_stage):
                return number
        return None

    def split(self, recut: "Bundle") -> int:
        """Into how many parts, one or two, the plans of a re-cut split every micro-batch of the job."""
        return recut.pipelines * recut.microbatches // (self.pipelines * self.microbatches)

    def fastest_recut(self, workers: int, *, groups: bool = False) -> int | None:
        """The other cut whose plan for so many workers, or fewer, is fastest; None if there is none.

        With `groups`, plans count too in which groups of pipelines have cuts of their own.
        """
        fitting = [
            (recut.plans[0].period, number)
            for number, recut in enumerate(self.recuts)
            if recut.stages * recut.pipelines - len(recut.plans[0].failed) <= workers
            and (groups or not recut.groups)
        ]
        return min(fitting)[1] if fitting else None

    def workers(self, plan: int) -> tuple[Worker, ...]:
        """The live workers of a plan, by stage, then pipeline."""
        failed = set(self.plans[plan].failed)
        grid = ((pipeline, stage) for stage in range(self.stages) for pipeline in range(self.pipelines))
        return tuple(worker for worker in grid if worker not in failed)

    def stream(self, plan: int, worker: Worker) -> tuple[Instruction, ...]:
        """Stream of a worker in this plan; KeyError when the plan has no such live worker."""
        place = self._place(plan, worker)
        lengths = self.layouts[plan].lengths
        first = sum(lengths[:place])
        stream = decode_stream(self.columns(plan), first, first + lengths[place], worker, self.shape)
        if stream is None:
            raise BundleError(
                f"damaged: worker {worker_text(worker)} of plan {plan} has a number out of range"
            )
        return stream

    def length(self, plan: int, worker: Worker) -> int:
        """Number of instructions in the stream of a worker."""
        return self.layouts[plan].lengths[self._place(plan, worker)]

    def columns(self, plan: int) -> Columns:
        """All streams of a plan, as they lie in the bundle."""
        if (known := self._unpacked.get(plan)) is not None:
            return known
        layout = self.layouts[plan]
        rows = sum(layout.lengths)
        data = unpack_bytes(self.packed_plans[plan], sum(layout.widths) * rows)
        if data is None or hashlib.sha256(data).digest() != layout.digest:
            raise BundleError(f"damaged: the streams of plan {plan} cannot be unpacked")
        self._unpacked.clear()
        found = self._unpacked[plan] = Columns(data, layout.widths, rows)
        return found

    def _place(self, plan: int, worker: Worker) -> int:
        """Index of a worker among the live workers of a plan."""
        pipeline, stage = worker
        failed = self.plans[plan].failed
        if worker in failed or not (0 <= pipeline < self.pipelines and 0 <= stage < self.stages):
            raise KeyError(f"plan {plan} has no live worker {worker_text(worker)}")
        gone = sum(1 for other in failed if (other[1], other[0]) < (stage, pipeline))
        return stage * self.pipelines + pipeline - gone


def join_bundle(index: Index, plans: Sequence[bytes], recuts: Sequence[bytes] = ()) -> bytes:
    """The bytes of a whole bundle with these columns of its plans, and with these bundles for other cuts.

    `Bundle.parse` is the inverse.
    """
    digests = tuple(_PREFIX.unpack_from(recut)[3] for recut in recuts)
    content = pack_index(replace(index, recut_digests=digests))
    blocks = [*(zlib.compress(block, PACKING) for block in (content, *plans)), *recuts]
    tail = b"".join((*(struct.pack("<I", len(block)) for block in blocks), *blocks))
    if (size := _PREFIX.size + len(tail)) > LARGEST_FILE:
        raise ValueError(f"the bundle would have {size} bytes, allowed are {LARGEST_FILE}")
    if len(content) > LARGEST_INDEX:
        raise ValueError(f"the index would have {len(content)} bytes, allowed are {LARGEST_INDEX}")
    digest = hashlib.sha256(content).digest()
    checked = digest + struct.pack("<II", len(content), len(blocks) - 1) + tail
    return MAGIC + struct.pack("<HI", FORMAT_VERSION, zlib.crc32(checked)) + checked


def digest_of(bundle: Bundle) -> str:
    """Of all that is in it, as it is shown to people: other plans, other digits."""
    return bundle.content_hash[:_DIGITS]


def bundle_alone(bundle: Bundle) -> bytes:
    """The bytes of a bundle without its re-cuts; of one that is a re-cut, a file of its own."""
    index = Index(**{each.name: getattr(bundle, each.name) for each in fields(Index)})
    return join_bundle(index, [zlib.decompress(plan) for plan in bundle.packed_plans])


def _parse_recuts(index: Index, blocks: Sequence[bytes], *, is_recut: bool) -> tuple[Bundle, ...]:
    if blocks and is_recut:
        raise BundleError("damaged: a re-cut has re-cuts of its own")
    recuts: list[Bundle] = []
    for block, digest in zip(blocks, index.recut_digests, strict=True):
        recut = Bundle.parse(block, is_recut=True)
        if recut.content_hash != digest.hex():
            raise BundleError("damaged: a re-cut is not the one that its index names")
        units, whole = recut.pipelines * recut.microbatches, index.pipelines * index.microbatches
        if (
            sum(recut.cut) != sum(index.cut)
            or units not in (whole, 2 * whole)
            or recut.tensor != index.tensor
            or recut.owners != index.owners
        ):
            raise BundleError(
                "damaged: a re-cut has other layers, micro-batches, ranks or owners than its job"
            )
        recuts.append(recut)
    return tuple(recuts)


def _split(data: bytes) -> list[bytes]:
    """The packed index and the packed plans, all bytes of the file accounted for and undamaged."""
    if not data:
        raise BundleError("not a bundle: it is empty; `recyclec compile JOB -o PLAN` writes one")
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise BundleError("not a bundle: it does not begin like one")
    _check_version(data)
    if len(data) < _PREFIX.size:
        raise BundleError(f"truncated: {len(data)} bytes long, at least {_PREFIX.size} expected{_AGAIN}")
    _, _, checksum, _, index_size, plans = _PREFIX.unpack_from(data)
    start = _PREFIX.size + 4 * (1 + plans)
    if len(data) < start:
        raise BundleError(f"truncated: {len(data)} bytes long, at least {start} expected{_AGAIN}")
    sizes = struct.unpack_from(f"<{1 + plans}I", data, _PREFIX.size)
    if len(data) < (expected := start + sum(sizes)):
        raise BundleError(f"truncated: {len(data)} bytes long, expected {expected}{_AGAIN}")
    if len(data) > expected:
        raise BundleError(f"followed by other bytes: {len(data)} bytes long, expected {expected}")
    if zlib.crc32(data[_CHECKED_FROM:]) != checksum:
        raise BundleError(f"damaged: the checksum does not match{_AGAIN}")
    if index_size > LARGEST_INDEX:
        raise BundleError(f"damaged: an index of {index_size} bytes, allowed are {LARGEST_INDEX}")
    return [data[first:last] for first, last in pairwise(accumulate(sizes, initial=start))]


def _check_version(data: bytes) -> None:
    """Before anything else: what follows depends on it."""
    if len(data) < _CHECKED_FROM:
        raise BundleError(f"truncated: {len(data)} bytes long, at least {_PREFIX.size} expected{_AGAIN}")
    (version,) = struct.unpack_from("<H", data, len(MAGIC))
    if version > FORMAT_VERSION:
        raise BundleError(
            f"made by a newer recyclec: format {version}, this one reads up to {FORMAT_VERSION}"
        )
    if version < 1:
        raise BundleError(f"damaged: format {version} does not exist")
    if version < FORMAT_VERSION:
        this = f"this one reads {FORMAT_VERSION}"
        raise BundleError(f"made by an older recyclec: format {version}, {this}; compile the job again")
