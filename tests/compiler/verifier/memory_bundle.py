"""Bundles that were never written to a file, and small changes to their streams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from recycle_compiler.ir.job import JobSpec, print_job
from recycle_runtime.plan.isa import USES_CHUNK, Instruction, Opcode

Cell = tuple[int, int]
"""(pipeline, stage) of a worker."""
Streams = dict[Cell, tuple[Instruction, ...]]

_FIELDS = {"c": "chunk", "p": "pipeline", "m": "microbatch", "b": "buffer", "i": "inbox", "#": "neighbour"}
_AWAY = {
    Opcode.SEND_ACTIVATION: 1,
    Opcode.RECV_GRADIENT: 1,
    Opcode.RECV_ACTIVATION: -1,
    Opcode.SEND_GRADIENT: -1,
}


def instruction(text: str, worker: Cell, pipelines: int) -> Instruction:
    """`forward p0 m1 b0 i2` or `send_activation p0 m1 b0 @1` as a value.

    `@1` is the worker of pipeline 1 on the next or the previous stage, `#5` the worker with that number;
    where no chunk is given, it is that of the worker's stage.
    """
    name, *words = text.split()
    opcode = Opcode[name.upper()]
    fields = {_FIELDS[word[0]]: int(word[1:]) for word in words if word[0] != "@"}
    for word in words:
        if word[0] == "@":
            fields["neighbour"] = (worker[1] + _AWAY.get(opcode, 0)) * pipelines + int(word[1:])
    if opcode in USES_CHUNK:
        fields.setdefault("chunk", worker[1])
    return Instruction(opcode, **fields)


@dataclass(frozen=True)
class Entry:
    """The index entry of a plan in memory."""

    failed: tuple[Cell, ...] = ()
    release: tuple[int, ...] = (0, 0)
    makespan: int = 0
    period: int = 0
    lower_bound: int = 1
    bound_over_cuts: int = 0
    reason: str = "load of stage 0"


@dataclass(frozen=True)
class MemoryBundle:
    """Plans that were never written to a file."""

    job: JobSpec
    plans: tuple[Entry, ...]
    streams: tuple[Streams, ...]
    stated_stages: int | None = None
    text: str | None = None
    recuts: tuple["MemoryBundle", ...] = ()

    @property
    def cut(self) -> Sequence[int]:
        return self.job.cut

    @property
    def tied_chunks(self) -> Sequence[int]:
        return self.job.tied_chunks

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        return self.job.groups

    @property
    def owners(self) -> int:
        return self.job.owners

    @property
    def slots(self) -> int:
        return self.job.slots

    @property
    def placed_every(self) -> int:
        return self.job.placed_every

    @property
    def stages(self) -> int:
        return self.job.stages if self.stated_stages is None else self.stated_stages

    @property
    def pipelines(self) -> int:
        return self.job.pipelines

    @property
    def tensor(self) -> int:
        return self.job.tensor

    @property
    def microbatches(self) -> int:
        return self.job.microbatches

    @property
    def chunk_stages(self) -> Sequence[int]:
        return self.job.chunk_stages

    @property
    def job_text(self) -> str:
        return print_job(self.job) if self.text is None else self.text

    def workers(self, plan_index: int) -> Sequence[Cell]:
        return tuple(self.streams[plan_index])

    def length(self, plan_index: int, worker: Cell) -> int:
        return len(self.streams[plan_index][worker])

    def stream(self, plan_index: int, worker: Cell) -> Sequence[Instruction]:
        return self.streams[plan_index][worker]

    def with_entry(self, **changes: Any) -> "MemoryBundle":
        """The same bundle with another index entry for its first plan."""
        return replace(self, plans=(replace(self.plans[0], **changes), *self.plans[1:]))

    def with_job(self, **changes: Any) -> "MemoryBundle":
        return replace(self, job=replace(self.job, **changes))

    def with_stream(self, worker: Cell, stream: Sequence[Instruction]) -> "MemoryBundle":
        """The same bundle with another stream for one worker of its first plan."""
        return replace(self, streams=({**self.streams[0], worker: tuple(stream)}, *self.streams[1:]))

    def without(self, worker: Cell, text: str) -> "MemoryBundle":
        """One instruction less."""
        stream = list(self.streams[0][worker])
        stream.remove(self._instruction(text, worker))
        return self.with_stream(worker, stream)

    def replaced(self, worker: Cell, old: str, new: str) -> "MemoryBundle":
        """One instruction for another."""
        stream = list(self.streams[0][worker])
        stream[stream.index(self._instruction(old, worker))] = self._instruction(new, worker)
        return self.with_stream(worker, stream)

    def inserted(self, worker: Cell, new: str, before: str) -> "MemoryBundle":
        """One instruction more."""
        stream = list(self.streams[0][worker])
        place = stream.index(self._instruction(before, worker))
        stream.insert(place, self._instruction(new, worker))
        return self.with_stream(worker, stream)

    def moved(self, worker: Cell, text: str, before: str) -> "MemoryBundle":
        """One instruction somewhere else."""
        return self.without(worker, text).inserted(worker, text, before)

    def _instruction(self, text: str, worker: Cell) -> Instruction:
        return instruction(text, worker, self.job.pipelines)
