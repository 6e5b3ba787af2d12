"""The index of a bundle: everything but the streams, packed into bytes and back. Standard library only.

Numbers are written seven bits to a byte, the lowest first; the upper bit says that more follow. In order:

    texts       how many, the length of each, their bytes: compiler version, job source, resolved job, then
                every reason once
    shape       stages, pipelines, tensor, micro-batches
    chunks      0 when chunk c is on stage c; else how many, and the stage of each
    cut         0 when the job gives whole stages only; else how many chunks, and the layers of each
    re-cuts     how many, and the hash of each, 32 bytes
    plans       how many; of each
                  how many workers failed, and the cells skipped before each, cells counted along pipelines
                  the release of every stage
                  makespan, period, lower bound, number of its reason, 1 when cut short
                  the bound over all cuts
                  the width of every column of its streams
                  of every live worker, by stage then pipeline, how many instructions its stream has
                  the SHA-256 of the columns, 32 bytes
    ties        only if anything follows: how many chunks are tied, and each
    groups      only if anything follows: how many, and for each the stage that holds each chunk
    owners      only where the optimizer's state is sharded: how many workers own each shard
    experts     only where peers share experts: slots of each worker in each mixture layer, and after how
                many steps experts are placed again
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from recycle_runtime.plan.codec import LARGEST_NUMBER, LARGEST_PLAN, TYPE_CODES, StreamShape

DIGEST_SIZE = 32
LARGEST_VALUE = (1 << 63) - 1


class BundleError(Exception):
    """The file is no bundle that can be used; one sentence says why."""


class PlanEntry(NamedTuple):
    """One failure state, and what its plan claims; times in ticks."""

    failed: tuple[tuple[int, int], ...]
    """(pipeline, stage) of each failed worker, sorted."""
    release: tuple[int, ...]
    """Tick at which the window of each stage opens."""
    makespan: int
    period: int
    lower_bound: int
    reason: str
    """Bound that binds, in words."""
    cut_short: bool
    bound_over_cuts: int = 0
    """Lower bound on the plans of any cut for as many workers; 0 when that is not known."""


class ColumnLayout(NamedTuple):
    """Places of a plan's streams in its columns."""

    widths: tuple[int, ...]
    lengths: tuple[int, ...]
    """Instructions of each live worker, by stage then pipeline."""
    digest: bytes
    """SHA-256 of the columns."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Index:
    """Index of a bundle: all but the streams themselves."""

    compiler_version: str
    job_source: str
    """The job file, as its author wrote it."""
    job_text: str
    """The job with every number resolved."""
    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    chunk_stages: tuple[int, ...]
    """The stage whose workers hold each chunk of the model."""
    cut: tuple[int, ...] = ()
    """Number of layers of each chunk; empty when the job gives whole stages only."""
    tied_chunks: tuple[int, ...] = ()
    """Chunks that share parameters; none, or two and more."""
    groups: tuple[tuple[int, ...], ...] = ()
    """For each group of pipelines the stage that holds each chunk, first `chunk_stages`; none where all
    pipelines have one cut."""
    owners: int = 0
    """Owners of each shard of the optimizer's state, all of them where fewer hold it; 0: every
    worker has the whole state."""
    slots: int = 0
    """Slots of each worker for experts, in each mixture layer; 0: peers share no experts."""
    placed_every: int = 0
    """Steps after which experts are placed again; 0: never."""
    recut_digests: tuple[bytes, ...] = ()
    """The content hash of each bundle for another cut."""
    plans: tuple[PlanEntry, ...]
    layouts: tuple[ColumnLayout, ...]
    """Of each plan."""

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk the stages whose workers hold it: one, or one of each group."""
        return tuple(zip(*(self.groups or (self.chunk_stages,)), strict=True))

    def job_line(self, name: str) -> tuple[str, ...]:
        """The words behind this one in the resolved job; none if it does not have it."""
        lines = (line.split() for line in self.job_text.splitlines())
        return next((tuple(words[1:]) for words in lines if words[:1] == [name]), ())

    def held(self, stage: int) -> tuple[int, ...]:
        """The chunks that workers of a stage hold, in order."""
        return tuple(chunk for chunk, stages in enumerate(self.holders) if stage in stages)

    @property
    def shape(self) -> StreamShape:
        """Sizes that the codec must know."""
        return StreamShape(len(self.chunk_stages), self.stages, self.pipelines, self.microbatches)


def pack_index(index: Index) -> bytes:
    """The bytes of an index; `unpack_index` is the inverse."""
    shape = (index.stages, index.pipelines, index.tensor, index.microbatches, len(index.chunk_stages))
    if max(shape) > LARGEST_NUMBER:
        raise ValueError(f"a bundle cannot hold a job of {shape}, allowed are {LARGEST_NUMBER} of each")
    reasons = list(dict.fromkeys(plan.reason for plan in index.plans))
    texts = [text.encode() for text in (index.compiler_version, index.job_source, index.job_text, *reasons)]
    packed = _pack_numbers([len(texts), *map(len, texts)]) + b"".join(texts)
    one_each = index.chunk_stages == tuple(range(index.stages))
    chunks = [0] if one_each else [len(index.chunk_stages), *index.chunk_stages]
    cut = [len(index.cut), *index.cut]
    packed += _pack_numbers([*shape[:4], *chunks, *cut, len(index.recut_digests)])
    packed += b"".join(index.recut_digests) + _pack_numbers([len(index.plans)])
    for plan, layout in zip(index.plans, index.layouts, strict=True):
        cells = [pipeline * index.stages + stage for pipeline, stage in plan.failed]
        skipped = (cell - last - 1 for last, cell in zip([-1, *cells], cells, strict=False))
        claims = (plan.makespan, plan.period, plan.lower_bound, reasons.index(plan.reason), plan.cut_short)
        packed += _pack_numbers(
            [len(cells), *skipped, *plan.release, *map(int, claims), plan.bound_over_cuts]
        )
        packed += _pack_numbers([*layout.widths, *layout.lengths]) + layout.digest
    if index.tied_chunks or index.groups or index.owners or index.slots:
        # Readers that know nothing of it refuse what they do not know.
        packed += _pack_numbers([len(index.tied_chunks), *index.tied_chunks])
    if index.groups or index.owners or index.slots:
        packed += _pack_numbers([len(index.groups), *(stage for group in index.groups for stage in group)])
    if index.owners or index.slots:
        packed += _pack_numbers([index.owners])
    if index.slots:
        packed += _pack_numbers([index.slots, index.placed_every])
    return packed


def unpack_index(data: bytes) -> Index:
    """Read an index; BundleError when anything in it is out of place."""
    numbers = _Numbers(data)
    texts = _unpack_texts(numbers)
    stages = numbers.next("the number of stages", 1, LARGEST_NUMBER)
    pipelines = numbers.next("the number of pipelines", 1, LARGEST_NUMBER)
    tensor = numbers.next("the tensor width", 1, LARGEST_NUMBER)
    microbatches = numbers.next("the number of micro-batches", 1, LARGEST_NUMBER)
    chunk_stages = _unpack_chunks(numbers, stages)
    cut = _unpack_cut(numbers, len(chunk_stages))
    recut_digests = tuple(numbers.take(DIGEST_SIZE) for _ in range(numbers.count("re-cuts")))
    plans: list[PlanEntry] = []
    layouts: list[ColumnLayout] = []
    for _ in range(numbers.count("plans", least=1)):
        plans.append(_unpack_plan(numbers, stages, pipelines, texts[3:]))
        layouts.append(_unpack_layout(numbers, stages * pipelines - len(plans[-1].failed)))
    tied_chunks = _unpack_tied(numbers, len(chunk_stages)) if numbers.left else ()
    groups = _unpack_groups(numbers, chunk_stages, stages) if numbers.left else ()
    owners = _unpack_owners(numbers) if numbers.left else 0
    slots, placed_every = _unpack_experts(numbers) if numbers.left else (0, 0)
    if len({stage for group in groups or (chunk_stages,) for stage in group}) < stages:
        raise BundleError("damaged: a stage has no chunk")
    if numbers.left:
        raise BundleError("damaged: the index does not end where it should")
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
        chunk_stages=chunk_stages,
        cut=cut,
        tied_chunks=tied_chunks,
        groups=groups,
        owners=owners,
        slots=slots,
        placed_every=placed_every,
        recut_digests=recut_digests,
        plans=tuple(plans),
        layouts=tuple(layouts),
    )


def _unpack_texts(numbers: "_Numbers") -> list[str]:
    count = numbers.count("texts", least=3)
    lengths = [numbers.next("the length of a text", 0, LARGEST_VALUE) for _ in range(count)]
    text = numbers.take(sum(lengths))
    try:
        ends = list(accumulate(lengths))
        return [str(text[end - length : end], "utf-8") for length, end in zip(lengths, ends, strict=True)]
    except UnicodeDecodeError as cause:
        raise BundleError("damaged: its texts are not UTF-8") from cause


def _unpack_chunks(numbers: "_Numbers", stages: int) -> tuple[int, ...]:
    count = numbers.count("chunks")
    if count == 0:
        if stages > numbers.left:
            # Every plan has a release for each of them.
            raise BundleError(f"damaged: it ends before the release of {stages} stages")
        return tuple(range(stages))
    chunk_stages = tuple(numbers.next("the stage of a chunk", 0, stages - 1) for _ in range(count))
    if len(set(chunk_stages)) < stages and stages > numbers.left:
        # Others may be those of further groups; but every plan has a release for each of them.
        raise BundleError("damaged: a stage has no chunk")
    return chunk_stages


def _unpack_cut(numbers: "_Numbers", chunks: int) -> tuple[int, ...]:
    count = numbers.count("chunks of the cut")
    if count not in (0, chunks):
        raise BundleError(f"damaged: the cut has {count} chunks, the job {chunks}")
    return tuple(numbers.next("the layers of a chunk", 1, LARGEST_NUMBER) for _ in range(count))


def _unpack_tied(numbers: "_Numbers", chunks: int) -> tuple[int, ...]:
    count = numbers.count("tied chunks")
    if count < 2 and not (count == 0 and numbers.left):
        raise BundleError(f"damaged: {count} tied chunks")
    tied = tuple(numbers.next("a tied chunk", 0, chunks - 1) for _ in range(count))
    if list(tied) != sorted(set(tied)):
        raise BundleError("damaged: the tied chunks are not in order")
    return tied


def _unpack_groups(
    numbers: "_Numbers", chunk_stages: tuple[int, ...], stages: int
) -> tuple[tuple[int, ...], ...]:
    count = numbers.count("groups")
    if count == 0 and numbers.left:
        return ()
    if count < 2:
        raise BundleError(f"damaged: {count} groups")
    groups = tuple(
        tuple(numbers.next("the stage of a chunk", 0, stages - 1) for _ in chunk_stages) for _ in range(count)
    )
    if groups[0] != chunk_stages:
        raise BundleError("damaged: the first group does not have the chunks of the job")
    if sum(len(set(group)) for group in groups) > len({stage for group in groups for stage in group}):
        raise BundleError("damaged: two groups share a stage")
    return groups


def _unpack_owners(numbers: "_Numbers") -> int:
    count = numbers.next("the number of owners", 0, LARGEST_NUMBER)
    if count == 0 and not numbers.left:
        raise BundleError(f"damaged: the number of owners is 0, which must be from 1 to {LARGEST_NUMBER}")
    return count


def _unpack_experts(numbers: "_Numbers") -> tuple[int, int]:
    slots = numbers.next("the number of slots for experts", 1, LARGEST_NUMBER)
    return slots, numbers.next("the number of steps between placements", 0, LARGEST_NUMBER)


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
    cut_short = bool(numbers.next("the mark of being cut short", 0, 1))
    over_cuts = numbers.next("the bound over all cuts", 0, LARGEST_VALUE)
    times = (makespan, period, lower_bound)
    return PlanEntry(tuple(failed), release, *times, reasons[reason], cut_short, over_cuts)


def _unpack_layout(numbers: "_Numbers", live: int) -> ColumnLayout:
    widths = tuple(
        numbers.next("the width of a column", 1, max(TYPE_CODES)) for _ in StreamShape(1, 1, 1, 1).limits
    )
    if not set(widths) <= set(TYPE_CODES):
        raise BundleError(f"damaged: the columns of a plan cannot be {widths} bytes wide")
    if not 1 <= live <= numbers.left:
        raise BundleError(f"damaged: it ends before the streams of {live} workers")
    lengths = tuple(numbers.next("the length of a stream", 0, LARGEST_PLAN) for _ in range(live))
    if (size := sum(widths) * sum(lengths)) > LARGEST_PLAN:
        raise BundleError(f"damaged: a plan of {size} bytes, allowed are {LARGEST_PLAN}")
    return ColumnLayout(widths, lengths, numbers.take(DIGEST_SIZE))


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
        """Number of bytes that have not been read."""
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
        """Number of `what` that follow; each takes a byte or more, so there are at most `left`."""
        return self.next(f"the number of {what}", least, self.left)

    def take(self, length: int) -> bytes:
        """The next bytes as they are."""
        if length > self.left:
            raise BundleError(f"damaged: it has {self.left} bytes where {length} are needed")
        self._position += length
        return self._data[self._position - length : self._position]
