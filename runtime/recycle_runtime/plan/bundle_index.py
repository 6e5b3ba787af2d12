"""The index of a bundle: everything but the streams, packed into bytes and back. Standard library only.

Numbers are written seven bits to a byte, the lowest first; the upper bit says that more follow. In order:

    texts       how many, the length of each, the length of them all as packed, the packed bytes:
                compiler version, job source, resolved job, then every reason once
    shape       stages, pipelines, tensor, micro-batches
    blobs       how many; of each its length and how many instructions it holds
    plans       how many; of each
                  how many workers failed, and the cells skipped before each, cells counted along pipelines
                  the release of every stage
                  makespan, period, lower bound, number of its reason, 1 when cut short
                  of every live worker, by stage then pipeline, its blob: 0 is the next one not yet
                  mentioned, n > 0 the one n before that
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from recycle_runtime.plan.codec import can_hold
from recycle_runtime.plan.range_coder import LARGEST_NUMBER
from recycle_runtime.plan.text_codec import decode_text, encode_text

LARGEST_VALUE = (1 << 63) - 1
LONGEST_PACKED_TEXT = 1 << 14
"""Longer texts are kept as they are, for packing is slow."""


class BundleError(Exception):
    """The file is no bundle that can be used; one sentence says why."""


class PlanEntry(NamedTuple):
    """One failure state, and what its plan claims; times in ticks."""

    failed: tuple[tuple[int, int], ...]
    """(pipeline, stage) of each failed worker, sorted."""
    release: tuple[int, ...]
    """When the window of each stage opens."""
    makespan: int
    period: int
    lower_bound: int
    reason: str
    """Which bound binds, in words."""
    cut_short: bool


class Blob(NamedTuple):
    """Where one encoded stream lies in the body, and how many instructions it holds."""

    offset: int
    length: int
    instructions: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index:
    """What a bundle says, but for the streams themselves."""

    compiler_version: str
    job_source: str
    """The job file, as its author wrote it."""
    job_text: str
    """The job with every number resolved."""
    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    plans: tuple[PlanEntry, ...]
    blobs: tuple[Blob, ...]
    references: tuple[tuple[int, ...], ...]
    """For each plan, the blob of each live worker, by stage then pipeline."""


def pack_index(index: Index) -> bytes:
    """The bytes of an index; `unpack_index` is the inverse."""
    shape = (index.stages, index.pipelines, index.tensor, index.microbatches)
    if max(shape) > LARGEST_NUMBER:
        raise ValueError(f"a bundle cannot hold a job of {shape}, allowed are {LARGEST_NUMBER} of each")
    reasons = list(dict.fromkeys(plan.reason for plan in index.plans))
    texts = [text.encode() for text in (index.compiler_version, index.job_source, index.job_text, *reasons)]
    packed = _pack_text(b"".join(texts))
    head = [len(texts), *map(len, texts), len(packed)]
    numbers = [*shape, len(index.blobs)]
    for blob in index.blobs:
        numbers += (blob.length, blob.instructions)
    numbers.append(len(index.plans))
    mentioned = 0
    for plan, references in zip(index.plans, index.references, strict=True):
        cells = [pipeline * index.stages + stage for pipeline, stage in plan.failed]
        numbers += (len(cells), *(cell - last - 1 for last, cell in zip([-1, *cells], cells, strict=False)))
        numbers += (*plan.release, plan.makespan, plan.period, plan.lower_bound)
        numbers += (reasons.index(plan.reason), int(plan.cut_short))
        for reference in references:
            numbers.append(mentioned - reference)
            mentioned = max(mentioned, reference + 1)
    return _pack_numbers(head) + packed + _pack_numbers(numbers)


def unpack_index(data: bytes, body: int) -> Index:
    """Read an index of a body of so many bytes; BundleError when anything in it is out of place."""
    numbers = _Numbers(data)
    texts = _unpack_texts(numbers)
    stages = numbers.next("the number of stages", 1, LARGEST_NUMBER)
    pipelines = numbers.next("the number of pipelines", 1, LARGEST_NUMBER)
    tensor = numbers.next("the tensor width", 1, LARGEST_NUMBER)
    microbatches = numbers.next("the number of micro-batches", 1, LARGEST_NUMBER)
    blobs = tuple(_unpack_blobs(numbers, body))
    plans: list[PlanEntry] = []
    references: list[tuple[int, ...]] = []
    mentioned = 0
    for _ in range(numbers.count("plans", least=1)):
        plans.append(_unpack_plan(numbers, stages, pipelines, texts[3:]))
        live = stages * pipelines - len(plans[-1].failed)
        references.append(_unpack_references(numbers, live, mentioned, len(blobs)))
        mentioned = max(mentioned, 1 + max(references[-1]))
    if mentioned < len(blobs) or numbers.left:
        raise BundleError("damaged: the index has parts that nothing refers to")
    if len({plan.failed for plan in plans}) < len(plans):
        raise BundleError("damaged: two plans are for the same failed workers")
    return Index(
        compiler_version=texts[0],
        job_source=texts[1],
        job_text=texts[2],
        stages=stages,
        pipelines=pipelines,
        tensor=tensor,
        microbatches=microbatches,
        plans=tuple(plans),
        blobs=blobs,
        references=tuple(references),
    )


def _unpack_texts(numbers: "_Numbers") -> list[str]:
    count = numbers.count("texts", least=3)
    lengths = [numbers.next("the length of a text", 0, LARGEST_VALUE) for _ in range(count)]
    total = sum(lengths)
    packed = numbers.take(numbers.next("the length of the texts", 0, total))
    text = _unpack_text(packed, total)
    try:
        ends = list(accumulate(lengths))
        return [str(text[end - length : end], "utf-8") for length, end in zip(lengths, ends, strict=True)]
    except UnicodeDecodeError as cause:
        raise BundleError("damaged: its texts are not UTF-8") from cause


def _pack_text(text: bytes) -> bytes:
    if len(text) > LONGEST_PACKED_TEXT:
        return text
    return min(encode_text(text), text, key=len)


def _unpack_text(packed: bytes, length: int) -> bytes:
    if len(packed) == length:
        return packed
    text = decode_text(packed, length) if length <= LONGEST_PACKED_TEXT else None
    if text is None:
        raise BundleError(f"damaged: its texts cannot be {length} bytes long")
    return text


def _unpack_blobs(numbers: "_Numbers", body: int) -> Iterator[Blob]:
    offset = 0
    for _ in range(numbers.count("streams")):
        length = numbers.next("the length of a stream", 1, body - offset)
        instructions = numbers.next("the number of instructions", 0, LARGEST_VALUE)
        if not can_hold(length, instructions):
            raise BundleError(f"damaged: {length} bytes cannot hold {instructions} instructions")
        yield Blob(offset, length, instructions)
        offset += length
    if offset != body:
        raise BundleError(f"damaged: its streams are {offset} bytes long, expected {body}")


def _unpack_plan(numbers: "_Numbers", stages: int, pipelines: int, reasons: list[str]) -> PlanEntry:
    failed: list[tuple[int, int]] = []
    cell = -1
    for _ in range(numbers.count("failed workers")):
        cell += 1 + numbers.next("a failed worker", 0, stages * pipelines - cell - 2)
        failed.append(divmod(cell, stages))
    if stages > numbers.left:
        raise BundleError(f"damaged: it ends before the release of {stages} stages")
    release = tuple(numbers.next("a release", 0, LARGEST_VALUE) for _ in range(stages))
    makespan, period, lower_bound = (numbers.next("a time", 0, LARGEST_VALUE) for _ in range(3))
    reason = numbers.next("a reason", 0, len(reasons) - 1)
    cut_short = numbers.next("the mark of being cut short", 0, 1)
    return PlanEntry(tuple(failed), release, makespan, period, lower_bound, reasons[reason], bool(cut_short))


def _unpack_references(numbers: "_Numbers", live: int, mentioned: int, blobs: int) -> tuple[int, ...]:
    if not 1 <= live <= numbers.left:
        raise BundleError(f"damaged: it ends before the streams of {live} workers")
    references: list[int] = []
    for _ in range(live):
        # The next blob may be mentioned only if there is one.
        reference = mentioned - numbers.next("a stream", int(mentioned == blobs), mentioned)
        references.append(reference)
        mentioned = max(mentioned, reference + 1)
    return tuple(references)


def _pack_numbers(numbers: list[int]) -> bytes:
    packed = bytearray()
    for number in numbers:
        if not 0 <= number <= LARGEST_VALUE:
            raise ValueError(f"a bundle cannot hold the number {number}")
        while number > 127:
            packed.append(number & 127 | 128)
            number >>= 7
        packed.append(number)
    return bytes(packed)


class _Numbers:
    """Reads numbers from bytes, never more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._data) - self._position

    def next(self, what: str, least: int, most: int) -> int:
        """The next number, which must be in range."""
        value = shift = 0
        while True:
            if self._position == len(self._data) or shift > 63:
                raise BundleError(f"damaged: {what} does not end where it should")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if not least <= value <= most:
            raise BundleError(f"damaged: {what} is {value}, which must be from {least} to {most}")
        return value

    def count(self, what: str, least: int = 0) -> int:
        """How many things follow; each takes at least a byte, so there cannot be more than bytes left."""
        return self.next(f"the number of {what}", least, self.left)

    def take(self, length: int) -> bytes:
        """The next bytes as they are."""
        if length > self.left:
            raise BundleError(f"damaged: it has {self.left} bytes where {length} are needed")
        self._position += length
        return self._data[self._position - length : self._position]
