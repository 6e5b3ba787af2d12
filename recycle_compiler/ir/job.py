"""A job with every number resolved: what the planner, the verifier and the bundle work from.

All arithmetic is on integers. A tick is one nanosecond, or one thousandth of a slot when the
job counts in slots; memory is in bytes, or in thousandths when the job counts activations.

Its text is lines of exact integers: the head of every IR text, and what a bundle keeps.

    job figure3
    shape stages 4 pipelines 3 tensor 1 microbatches 6
    units slot count
    forward 1000 1000 1000 1000
    ...
    capacity 4000 3000 unlimited 1000
    techniques adaptive decouple stagger
    failures 3
    solver time_limit_ns 60000000000 gap_ppm 10000 seed 0

Where stages do not hold one chunk each, in order, `chunks 0 1 1 0` says which stage holds each chunk. A job
in layers also has `cut 3 2 3`, the layers of each chunk, `redundancy 2`, and the lines of `ir/layers.py` if
it can be re-cut; `split 40000` if micro-batches may be split in two, `parts 2` where they are; `free 32`
if the compiler chooses where its 32 workers start. Where layers share parameters, `tied 0 9` names them and
`tied_reduce 400` is what their sum takes. Where groups of pipelines have cuts of their own, `groups 0,0 1,2`
says for each group which stage holds each chunk, and `shares 30 2` how many micro-batches each group has;
`grouping off` if no plan may have them. Where the optimizer's state is sharded, it has the lines of
`ir/sharding.py`; `spread 200000 50000` where op times vary, by micro-batch and by chance; `experts 2 1` where
peers share experts: slots of each worker, and after how many steps experts are placed again.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add, ge, sub
from typing import Any

from recycle_compiler.ir.expert_messages import MOST_EXPERTS, MOST_SLOTS, MOST_TICKS, message_ticks
from recycle_compiler.ir.layers import MORE, PER_LAYER, LayerCosts, parse_layers, print_layers
from recycle_compiler.ir.sharding import LINES, Sharding, parse_sharding, print_sharding

TICKS_PER_UNIT = {"slot": 1_000, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MEMORY_SCALE = {"count": 1_000, "byte": 1}
DEFAULT_REDUNDANCY = 2


@dataclass(frozen=True, slots=True)
class Techniques:
    """Techniques that the planner may use; each can be switched off to see what it is worth."""

    adaptive: bool = True
    decouple: bool = True
    stagger: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the techniques that are on, in the order users read them."""
        switches = (("adaptive", self.adaptive), ("decouple", self.decouple), ("stagger", self.stagger))
        return tuple(name for name, on in switches if on)


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """Limits of what the planner may spend, and when it may stop early."""

    time_limit_ns: int = 600_000_000_000
    """For all plans of the job together."""
    gap_ppm: int = 0
    """Stop improving a plan within this many millionths of its bound."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job. Tuples have one value per chunk; only `capacity` has one per stage."""

    name: str
    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    """Per pipeline."""
    unit: str
    """Unit in which users write times: a key of TICKS_PER_UNIT."""
    memory_unit: str
    """Unit in which users write memory: a key of MEMORY_SCALE."""
    forward: tuple[int, ...]
    backward_input: tuple[int, ...]
    backward_weight: tuple[int, ...]
    optimizer: tuple[int, ...]
    reduce: tuple[int, ...]
    transfer: tuple[int, ...]
    """From chunk c to c + 1 and back; one value fewer than there are chunks."""
    activation: tuple[int, ...]
    """Held from the start of F."""
    kept_for_weight: tuple[int, ...]
    """Part of the activation that stays between the end of I and the end of W."""
    capacity: tuple[int | None, ...]
    """For activations, per worker; None is unlimited."""
    parameters: tuple[int, ...]
    """Bytes that a worker taking over this chunk must copy, optimizer state included; 0 when not known."""
    techniques: Techniques
    failures: int
    """Workers that may fail: the bundle holds plans for 0 up to this many."""
    solver: SolverOptions
    chunk_stages: tuple[int, ...] = ()
    """The stage whose workers hold each chunk. Left empty, every stage holds one chunk, in order."""
    cut: tuple[int, ...] = ()
    """Number of layers of each chunk; empty where the job gives whole stages only."""
    layer_costs: LayerCosts | None = None
    """Costs of other cuts; None where the cut stays."""
    redundancy: int = DEFAULT_REDUNDANCY
    """Number of workers that must hold every layer under another cut."""
    split_ppm: int | None = None
    """Extra time of the two halves of a micro-batch over the whole, in millionths; None where micro-batches
    are never split."""
    spread_ppm: int = 0
    """Standard deviation of the op times of a micro-batch around what they should be, all of them longer or
    shorter together, as with sequences of unlike lengths; in millionths."""
    jitter_ppm: int = 0
    """The same by chance, of every op for itself."""
    parts: int = 1
    """Into how many parts, one or two, plans of this job split every micro-batch; `microbatches` counts
    parts. Two only under the layout of a job in layers."""
    tied: tuple[int, ...] = ()
    """Layers that share parameters, chunks where the job gives whole stages; none, or two and more."""
    tied_reduce: int = 0
    """Ticks that summing the gradients of tied layers takes; `reduce` of a tied chunk includes them."""
    free_workers: int = 0
    """Of a job that leaves stages and pipelines to the compiler, the number of its workers; else 0. Its
    cut and grid are then only the first that fit, and some cells of the grid may have no worker."""
    vacant: int = 0
    """Cells of the grid for which there is no worker, where the workers of a job do not fill one. Plans count
    them as failed; so do `failures`, which are so many more than those that the job tolerates."""
    grouping: bool = True
    """True if plans may put pipelines into groups with cuts of their own; of a job in layers."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Stage that holds each chunk, for each group of pipelines with a cut of its own, first that of
    `chunk_stages`. Empty where all pipelines have one cut."""
    shares: tuple[int, ...] = ()
    """Number of micro-batches of each group: the first so many are those of the first group, and so on."""
    sharding: Sharding | None = None
    """Sharing of the optimizer's state; None: every worker has the whole state. `optimizer` and
    `capacity` are then those of the workers that are left."""
    counts: tuple[int, ...] = ()
    """Parameters of each chunk on one GPU; empty where that is not known."""
    overhead: int = 0
    """Part of a worker's memory that is neither state nor activations, and not in `capacity` either."""
    slots: int = 0
    """Slots of each worker for experts, in each mixture layer. Where there are any, the workers that hold a
    chunk meet in rounds: see `scheduling/rounds/`. 0: peers share no experts."""
    exchange: tuple[int, ...] = ()
    """Ticks in which tokens of each chunk go to their experts and back, once in `forward` and once in
    `backward_input`, while no worker has failed; empty where that is not known."""
    state_counts: tuple[int, ...] = ()
    """Parameters of each chunk whose state is shared out, where workers have fewer: not all experts."""
    expert_counts: tuple[int, ...] = ()
    """Experts of each mixture layer of a chunk, which need as many slots; empty where that is not known."""
    slot_transfer: tuple[int, ...] = ()
    """Ticks of one expert of each mixture layer of a chunk to another worker: of such messages are parts of
    `reduce` and `gather` (`ir.expert_messages`). Empty where that is not known."""
    placed_every: int = 0
    """Steps after which experts are placed again; 0: never."""

    def __post_init__(self) -> None:
        if not self.chunk_stages:
            object.__setattr__(self, "chunk_stages", tuple(range(self.stages)))

    @property
    def chunks(self) -> int:
        """Number of contiguous ranges of layers in the cut; micro-batches pass them in order."""
        return len(self.chunk_stages)

    @property
    def has_chunk_per_stage(self) -> bool:
        """True if every stage holds one chunk, in order: then chunks and stages have the same numbers."""
        return self.chunk_stages == tuple(range(self.stages))

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """For each chunk the stages whose workers hold it: one, or one of each group."""
        return tuple(zip(*(self.groups or (self.chunk_stages,)), strict=True))

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """For each stage the chunks that its workers hold, in order."""
        held: dict[int, list[int]] = {}
        for chunk, stages in enumerate(self.holders):
            for stage in stages:
                held.setdefault(stage, []).append(chunk)
        return tuple(tuple(held.get(stage, ())) for stage in range(self.stages))

    @property
    def owners(self) -> int:
        """Owners of each shard of the optimizer's state; 0: every worker has the whole state."""
        return 0 if self.sharding is None else self.sharding.owners

    @property
    def gather(self) -> tuple[int, ...]:
        """Ticks that the new weights of each chunk take to all that hold it; 0 where nothing is sharded."""
        return (0,) * self.chunks if self.sharding is None else self.sharding.gather

    def left_by(self, failed: Sequence[int]) -> "JobSpec":
        """The job when so many workers of each stage have failed: who is left owns more of a sharded state,
        so that steps take longer and activations have less room, and sends fewer tokens to experts of others.
        The same job where state is whole."""
        sharding = self.sharding
        if sharding is None:
            return self
        lost = sharding.lost_with(self.holders, failed)
        if lost == sharding.lost:
            return self
        more = [
            sharding.kept(chunk, now) - sharding.kept(chunk, before)
            for chunk, (now, before) in enumerate(zip(lost, sharding.lost, strict=True))
        ]
        capacity = tuple(
            None if room is None else room - sum(more[chunk] for chunk in held)
            for room, held in zip(self.capacity, self.held, strict=True)
        )
        steps = tuple(sharding.step_time(chunk, count) for chunk, count in enumerate(lost))
        apart = self.with_messages(-1)
        known = replace(sharding, lost=lost, gather=apart.gather)
        left = replace(apart, optimizer=steps, capacity=capacity, sharding=known).with_messages()
        if not self.exchange:
            return left
        moved = tuple(map(sub, left.exchange_left, self.exchange_left))
        forward, back = (tuple(map(add, ticks, moved)) for ticks in (self.forward, self.backward_input))
        return replace(left, forward=forward, backward_input=back)

    def with_messages(self, times: int = 1) -> "JobSpec":
        """The job whose sums and gathers have the messages of experts once more, or once less: those of the
        workers that are left. The same job where these are not known."""
        known = self.sharding
        if known is None or not self.slot_transfer:
            return self
        reduce, gather = list(self.reduce), list(known.gather)
        for chunk, (ticks, experts) in enumerate(zip(self.slot_transfer, self.expert_counts, strict=True)):
            left = known.shards[chunk] - known.lost[chunk]
            messages = message_ticks(ticks, experts, self.slots, left, known.owners)
            reduce[chunk] += times * messages.sum
            gather[chunk] += times * messages.gather
        return replace(self, reduce=tuple(reduce), sharding=replace(known, gather=tuple(gather)))

    @property
    def exchange_left(self) -> tuple[int, ...]:
        """Part of `forward` of each chunk, and as much of `backward_input`, in which tokens travel: n workers
        that are left keep 1 / n of them. Empty where `exchange` is."""
        if self.sharding is None or not self.exchange:
            return self.exchange
        return self._exchange_with(self.sharding.lost)

    def _exchange_with(self, lost: Sequence[int]) -> tuple[int, ...]:
        """With so many holders of each chunk failed."""
        assert self.sharding is not None, "peers that share experts share out the optimizer's state"
        return tuple(
            -(-ticks * shards * max(0, shards - gone - 1) // ((shards - gone) * (shards - 1)))
            if 0 < gone < shards
            else ticks
            for ticks, shards, gone in zip(self.exchange, self.sharding.shards, lost, strict=True)
        )

    @property
    def short_of_slots(self) -> int | None:
        """The first chunk for whose experts its workers that are left have too few slots; None: they all have
        enough, as far as is known."""
        known = self.sharding
        if known is None or not self.expert_counts:
            return None
        left = (shards - lost for shards, lost in zip(known.shards, known.lost, strict=True))
        short = (count * self.slots < most for count, most in zip(left, self.expert_counts, strict=True))
        return next((chunk for chunk, is_short in enumerate(short) if is_short), None)

    @property
    def unfailed(self) -> "JobSpec":
        """The job while no worker has failed: what the plans of a bundle have in common."""
        return self.left_by((0,) * self.stages)

    @property
    def without_rounds(self) -> "JobSpec":
        """The job with the same costs, whose workers need not meet in rounds."""
        return replace(self, slots=0, placed_every=0, exchange=(), expert_counts=(), slot_transfer=())

    @property
    def tied_chunks(self) -> tuple[int, ...]:
        """Chunks that share parameters: they reduce together, so none steps before all can."""
        if not self.cut:
            return self.tied
        ends = list(accumulate(self.cut))
        found = sorted({bisect_right(ends, layer) for layer in self.tied})
        return tuple(found) if len(found) > 1 else ()

    @property
    def is_free(self) -> bool:
        """True if the compiler chooses the cut that the job starts with."""
        return self.free_workers > 0

    @property
    def present(self) -> int:
        """Workers that the job begins with."""
        return self.workers - self.vacant

    @property
    def is_recut(self) -> bool:
        """True if it is a job in layers under another cut than it starts with: a job that a layout gives."""
        return bool(self.cut) and self.layer_costs is None

    @property
    def workers(self) -> int:
        """Cells of the grid, each a worker unless it is vacant; a tensor-parallel group is one worker."""
        return self.stages * self.pipelines

    @property
    def finish(self) -> tuple[int, ...]:
        """Ticks in which a worker of each stage reduces, steps and gathers, for all chunks that it holds."""
        if self.groups:
            ends = reduction_ends(self)
            return tuple(step_ends(self, {s: ends[held[-1]] for s, held in enumerate(self.held)}).values())
        whole = [0] * self.stages
        for stage, *times in zip(self.chunk_stages, self.reduce, self.optimizer, self.gather, strict=True):
            whole[stage] += sum(times)
        return tuple(whole)

    @property
    def varies(self) -> bool:
        """True if op times are known to vary."""
        return bool(self.spread_ppm or self.jitter_ppm)

    @property
    def ticks_per_unit(self) -> int:
        return TICKS_PER_UNIT[self.unit]

    @property
    def memory_scale(self) -> int:
        return MEMORY_SCALE[self.memory_unit]

    def verify(self) -> Iterator[str]:
        """Yield every broken invariant; a good job yields nothing."""
        for name in ("stages", "pipelines", "tensor", "microbatches"):
            if getattr(self, name) < 1:
                yield f"{name} must be at least 1, got {getattr(self, name)}"
        if {stage for stages in self.holders for stage in stages} != set(range(self.stages)):
            yield f"chunks {self.groups or self.chunk_stages} do not lie on each of {self.stages} stages"
        yield from self._verify_groups()
        broken = [*self._verify_costs()]
        if self.sharding is not None:
            broken += self.sharding.verify(self.chunks, self.stages)
        yield from broken
        # What is said of experts is counted from these.
        if not broken:
            yield from self._verify_experts()
        if any(kept > whole for kept, whole in zip(self.kept_for_weight, self.activation, strict=False)):
            yield "kept_for_weight exceeds activation"
        if self.unit not in TICKS_PER_UNIT or self.memory_unit not in MEMORY_SCALE:
            yield f"unknown unit {self.unit} or {self.memory_unit}"
        if not 0 <= self.vacant <= self.failures <= self.workers:
            yield f"failures must be between {self.vacant} and {self.workers}, got {self.failures}"
        if self.counts and len(self.counts) != self.chunks:
            yield f"counts needs {self.chunks} values, got {len(self.counts)}"
        yield from self._verify_layers()

    def _verify_costs(self) -> Iterator[str]:
        for name in PER_CHUNK:
            values = getattr(self, name)
            expected = self.stages if name == "capacity" else self.chunks - (name == "transfer")
            if len(values) != expected:
                yield f"{name} needs {expected} values, got {len(values)}"
            least = 1 if name in STRICTLY_POSITIVE else 0
            # Failures may leave a stage no room where state is shared out; then there is no plan for them.
            is_left = name == "capacity" and self.sharding is not None and any(self.sharding.lost)
            if any(value is not None and value < least for value in values) and not is_left:
                yield f"{name} must be at least {least} everywhere, got {values}"

    def _verify_of_experts(self) -> Iterator[str]:
        for name in _OF_EXPERTS if self.slots else ():
            values: tuple[int, ...] = getattr(self, name)
            if values and (len(values) != self.chunks or min(values) < 0):
                yield f"{name} needs {self.chunks} values of at least 0, got {values}"
        if self.slot_transfer and not (self.expert_counts and self.slots):
            yield "slot_transfer needs expert_counts, and a job with slots for experts"
        if not self.slot_transfer:
            return
        shards = max(self.sharding.shards) if self.sharding is not None else 0
        for name, most, value in (
            ("expert_counts", MOST_EXPERTS, max(self.expert_counts, default=0)),
            ("slot_transfer", MOST_TICKS, max(self.slot_transfer)),
            ("experts", MOST_SLOTS, self.slots),
            ("shards", self.workers, shards),
        ):
            if value > most:
                yield f"{name} must be at most {most}, got {value}"

    def _verify_experts(self) -> Iterator[str]:
        if min(self.slots, self.placed_every) < 0 or self.slots < min(1, self.placed_every):
            yield f"{self.slots} slots for experts cannot be placed every {self.placed_every} steps"
            return
        if wrong := next(self._verify_of_experts(), ""):
            yield wrong
            return
        if not self.slots:
            return
        longest = zip(self.forward, self.backward_input, strict=False)
        if any(map(ge, self.exchange_left, map(min, longest))):
            yield f"forward and backward_input must be longer than exchange within them, {self.exchange_left}"
        if self.sharding is not None:
            apart = self.with_messages(-1)
            if min(*apart.reduce, *apart.gather) < 0:
                yield "reduce and gather must be longer than the messages of experts within them"
        if self.sharding is None or not self.techniques.adaptive:
            yield "slots for experts need a sharded state and the technique adaptive"
        if not self.has_chunk_per_stage or self.groups or self.tied or self.parts > 1:
            yield "stages with slots for experts hold one chunk each, with no groups, ties or halves"

    def _verify_groups(self) -> Iterator[str]:
        if len(self.groups) != len(self.shares) or len(self.groups) == 1:
            yield f"{len(self.groups)} groups cannot have {len(self.shares)} shares"
        if not self.groups:
            return
        units = self.pipelines * self.microbatches
        if sum(self.shares) != units or min(self.shares, default=0) < 1:
            yield f"shares {self.shares} do not add up to {units} micro-batches"
        if self.groups[0] != self.chunk_stages or self.tied or not self.is_recut:
            yield "groups are for jobs in layers under another cut, none of them tied"
        if not self.techniques.adaptive:
            yield "groups need the technique adaptive"
        # Stages of one group follow those of the group before, and micro-batches pass them in order.
        stages = [stage for group in self.groups for stage in dict.fromkeys(group)]
        if stages != list(range(self.stages)) or any(list(g) != sorted(g) for g in self.groups):
            yield f"groups {self.groups} do not have contiguous chunks on stages in order"

    def _verify_layers(self) -> Iterator[str]:
        if self.redundancy < 1:
            yield f"redundancy must be at least 1, got {self.redundancy}"
        if self.cut and (len(self.cut) != self.chunks or min(self.cut) < 1):
            yield f"cut {self.cut} does not give each of {self.chunks} chunks a layer"
        yield from self._verify_ties()
        if not 0 <= self.free_workers <= self.workers:
            yield f"a grid of {self.workers} cells cannot have {self.free_workers} workers"
        if self.parts not in (1, 2) or (self.parts == 2 and not self.cut):
            yield f"micro-batches cannot be in {self.parts} parts"
        if self.split_ppm is not None and (self.split_ppm < 0 or self.layer_costs is None):
            yield f"micro-batches cannot be split at a cost of {self.split_ppm}"
        if min(self.spread_ppm, self.jitter_ppm) < 0:
            yield f"op times cannot vary by {self.spread_ppm} and {self.jitter_ppm} millionths"
        if self.layer_costs is None:
            if self.is_free:
                yield "the cut of a job without layers cannot be free"
            return
        yield from self.layer_costs.verify()
        if sum(self.cut) != self.layer_costs.count:
            yield f"cut {self.cut} does not have the {self.layer_costs.count} layers of the job"

    def _verify_ties(self) -> Iterator[str]:
        count = sum(self.cut) if self.cut else self.chunks
        if len(self.tied) == 1 or list(self.tied) != sorted(set(self.tied)):
            yield f"tied must be several numbers in order, got {self.tied}"
        if self.tied and not 0 <= self.tied[0] <= self.tied[-1] < count:
            yield f"tied {self.tied} names more than there are, {count}"
            return
        if self.tied and not self.has_chunk_per_stage:
            yield "chunks cannot be tied where workers hold several"
        if self.tied_reduce < 0 or any(self.reduce[c] < self.tied_reduce for c in self.tied_chunks):
            yield f"reduce of tied chunks must include tied_reduce, {self.tied_reduce}"


STRICTLY_POSITIVE = ("forward", "backward_input", "backward_weight")
_OF_EXPERTS = ("exchange", "state_counts", "expert_counts", "slot_transfer")
"""Per chunk, where peers share experts; may be empty."""
PER_CHUNK = (
    *STRICTLY_POSITIVE,
    "optimizer",
    "reduce",
    "transfer",
    "activation",
    "kept_for_weight",
    "capacity",
    "parameters",
)
"""Names of the tuples, `capacity` among them."""


_SHAPE = ("stages", "pipelines", "tensor", "microbatches")
_SOLVER = ("time_limit_ns", "gap_ppm", "seed")


def reduction_ends(job: JobSpec) -> tuple[int, ...]:
    """For each chunk, when its sum is done, where all workers begin with their sums at one time.

    Every worker sums its chunks in order, so a sum waits for the one before it on any of its holders.
    """
    ends: list[int] = []
    for chunk, (stages, reduce) in enumerate(zip(job.holders, job.reduce, strict=True)):
        follows = chunk > 0 and bool(set(stages) & set(job.holders[chunk - 1]))
        ends.append(reduce + (ends[-1] if follows else 0))
    return tuple(ends)


def step_ends(job: JobSpec, summed: Mapping[int, int]) -> dict[int, int]:
    """Time at which the workers of each stage have stepped all their chunks and have all their weights.

    `summed` has when each stage has its last sum; stages that it does not name are left out. A worker steps
    its chunks in order. Weights go to all holders of a chunk at once, when the last of them has stepped it.
    """
    free = dict(summed)
    for chunk, holders in enumerate(job.holders):
        stages = [stage for stage in holders if stage in free]
        for stage in stages:
            free[stage] += job.optimizer[chunk]
        if job.owners and stages:
            free |= dict.fromkeys(stages, max(free[stage] for stage in stages) + job.gather[chunk])
    return free


def leading_chunks(job: JobSpec) -> list[int]:
    """For each chunk the first of those that it is tied to; itself, if it is not tied."""
    tied = job.tied_chunks
    return [tied[0] if chunk in tied else chunk for chunk in range(job.chunks)]


@dataclass
class TextError(Exception):
    """IR text that cannot be read; `line` counts from 1, 0 when it is about the whole text."""

    line: int
    what: str
    word: int | None = None
    """Number of the wrong word in the line, from 0; None: all of the line."""
    hint: str | None = None

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}" if self.line else self.what


def print_job(job: JobSpec) -> str:
    """The exact text of a job; `parse_job` is its inverse."""
    shape = " ".join(f"{name} {getattr(job, name)}" for name in _SHAPE)
    solver = " ".join(f"{name} {getattr(job.solver, name)}" for name in _SOLVER)
    lines = [f"job {job.name}", f"shape {shape}", f"units {job.unit} {job.memory_unit}"]
    for name in PER_CHUNK:
        values = ("unlimited" if value is None else str(value) for value in getattr(job, name))
        lines.append(" ".join((name, *values)))
    if not job.has_chunk_per_stage:
        lines.append(" ".join(("chunks", *map(str, job.chunk_stages))))
    if job.groups:
        lines.append(" ".join(("groups", *(",".join(map(str, group)) for group in job.groups))))
        lines.append(" ".join(("shares", *map(str, job.shares))))
    if job.cut:
        lines += [" ".join(("cut", *map(str, job.cut))), f"redundancy {job.redundancy}"]
    if job.layer_costs is not None:
        lines += print_layers(job.layer_costs)
    if job.tied:
        lines += [" ".join(("tied", *map(str, job.tied))), f"tied_reduce {job.tied_reduce}"]
    if job.sharding is not None:
        lines += print_sharding(job.sharding)
    if job.counts:
        lines += [" ".join(("counts", *map(str, job.counts))), f"overhead {job.overhead}"]
    lines += [line for line, is_told in _choices(job) if is_told]
    lines.append(" ".join(("techniques", *job.techniques.names)))
    lines += [f"failures {job.failures}", f"solver {solver}"]
    return "\n".join(lines) + "\n"


def _choices(job: JobSpec) -> Iterator[tuple[str, bool]]:
    """Lines about what plans may do, and whether they differ from what is left unsaid."""
    yield f"split {job.split_ppm}", job.split_ppm is not None
    yield f"parts {job.parts}", job.parts > 1
    yield "grouping off", not job.grouping
    yield f"spread {job.spread_ppm} {job.jitter_ppm}", job.varies
    yield f"experts {job.slots} {job.placed_every}", job.slots > 0
    for name in _OF_EXPERTS:
        values: tuple[int, ...] = getattr(job, name)
        yield " ".join((name, *map(str, values))), any(values)
    yield f"free {job.free_workers}", job.is_free
    yield f"vacant {job.vacant}", job.vacant > 0


def parse_job(lines: Iterable[str]) -> JobSpec:
    """Read what `print_job` wrote; raises TextError."""
    fields: dict[str, list[str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if words[0] in fields:
            raise TextError(number, f"{words[0]} is given twice")
        fields[words[0]] = words[1:]
    expected = {"job", "shape", "units", "techniques", "failures", "solver", *PER_CHUNK}
    optional = {"chunks", "cut", "redundancy", "split", "parts", "tied", "tied_reduce", "free", "vacant"}
    optional |= {
        "groups",
        "shares",
        "grouping",
        "counts",
        "overhead",
        "spread",
        "experts",
        *_OF_EXPERTS,
        *LINES,
        *(f"layer_{name}" for name in MORE),
    }
    if "layer_forward" in fields:
        expected |= {f"layer_{name}" for name in (*PER_LAYER, "capacity")}
    if fields.keys() - optional != expected:
        odd = sorted((fields.keys() ^ expected) - optional)
        raise TextError(0, f"a resolved job has missing or unknown lines: {', '.join(odd)}")
    try:
        job = _job_from(fields)
    except (ValueError, IndexError, KeyError) as cause:
        raise TextError(0, f"a resolved job has a malformed line: {cause}") from cause
    if broken := list(job.verify()):
        raise TextError(0, f"a resolved job is not valid: {broken[0]}")
    return job


def _job_from(fields: dict[str, list[str]]) -> JobSpec:
    shape = _pairs(fields["shape"], _SHAPE)
    per_chunk: dict[str, Any] = {name: tuple(_number(word) for word in fields[name]) for name in PER_CHUNK}
    unit, memory_unit = fields["units"]
    techniques = fields["techniques"]
    if set(techniques) - {"adaptive", "decouple", "stagger"}:
        raise ValueError(f"unknown technique in {techniques}")
    (name,) = fields["job"]
    (failures,) = fields["failures"]
    groups = tuple(tuple(map(int, word.split(","))) for word in fields.get("groups", ()))
    if len({len(group) for group in groups}) > 1:
        raise ValueError(f"groups {groups} do not have the same chunks")
    return JobSpec(
        name=name,
        unit=unit,
        memory_unit=memory_unit,
        techniques=Techniques(*(word in techniques for word in ("adaptive", "decouple", "stagger"))),
        failures=int(failures),
        solver=SolverOptions(**_pairs(fields["solver"], _SOLVER)),
        chunk_stages=tuple(int(word) for word in fields.get("chunks", ())),
        cut=tuple(int(word) for word in fields.get("cut", ())),
        layer_costs=parse_layers(fields) if "layer_forward" in fields else None,
        redundancy=int(fields.get("redundancy", [str(DEFAULT_REDUNDANCY)])[0]),
        split_ppm=int(fields["split"][0]) if "split" in fields else None,
        parts=int(fields.get("parts", ["1"])[0]),
        tied=tuple(int(word) for word in fields.get("tied", ())),
        tied_reduce=int(fields.get("tied_reduce", ["0"])[0]),
        free_workers=int(fields.get("free", ["0"])[0]),
        vacant=int(fields.get("vacant", ["0"])[0]),
        **_numbers(fields.get("spread", ["0", "0"]), ("spread_ppm", "jitter_ppm")),
        **_numbers(fields.get("experts", ["0", "0"]), ("slots", "placed_every")),
        grouping=_is_on(fields.get("grouping", ["on"])),
        groups=groups,
        shares=tuple(int(word) for word in fields.get("shares", ())),
        counts=tuple(int(word) for word in fields.get("counts", ())),
        overhead=int(fields.get("overhead", ["0"])[0]),
        **{name: tuple(int(word) for word in fields.get(name, ())) for name in _OF_EXPERTS},
        sharding=parse_sharding(fields, shape["stages"]) if LINES & fields.keys() else None,
        **shape,
        **per_chunk,
    )


def _pairs(words: list[str], names: tuple[str, ...]) -> dict[str, int]:
    if tuple(words[0::2]) != names:
        raise ValueError(f"expected {' '.join(names)}, got {' '.join(words[0::2])}")
    return {name: int(value) for name, value in zip(names, words[1::2], strict=True)}


def _numbers(words: list[str], names: tuple[str, ...]) -> dict[str, int]:
    return {name: int(word) for name, word in zip(names, words, strict=True)}


def _is_on(words: list[str]) -> bool:
    if words not in (["on"], ["off"]):
        raise ValueError(f"expected on or off, got {' '.join(words)}")
    return words == ["on"]


def _number(word: str) -> int | None:
    return None if word == "unlimited" else int(word)
