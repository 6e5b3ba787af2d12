"""A slow and literal reading of what streams mean, to hold the verifier's verdicts against.

Values are names instead of tensors: a forward that is not given its very input raises WrongResultError,
and so does everything else that a real worker would compute wrongly or never finish.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

from recycle_compiler.ir.job import JobSpec
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.compiler.verifier.memory_bundle import Cell, Streams

Value = tuple[str, int, int, int]
"""`activation` or `gradient`, pipeline, micro-batch, and the chunk that made it."""
_SERVED = {
    Opcode.SERVE_FORWARD: Opcode.FORWARD,
    Opcode.SERVE_BACKWARD: Opcode.BACKWARD,
    Opcode.SERVE_BACKWARD_INPUT: Opcode.BACKWARD_INPUT,
    Opcode.SERVE_BACKWARD_WEIGHT: Opcode.BACKWARD_WEIGHT,
}
"""Services: work for others, which takes as long, and as much memory."""
_COMPUTE = (*_SERVED, *_SERVED.values())
_PART = {
    Opcode.FORWARD: "F",
    Opcode.SERVE_FORWARD: "F",
    Opcode.BACKWARD: "B",
    Opcode.SERVE_BACKWARD: "B",
    Opcode.BACKWARD_INPUT: "B",
    Opcode.SERVE_BACKWARD_INPUT: "B",
}
"""Work of all holders of a chunk together, where they share experts."""
_Done = tuple[tuple[int, int, int], int]


class WrongResultError(Exception):
    """The streams do not do what they should."""


@dataclass
class _Buffer:
    loaded: tuple[int, int, int] | None = None
    unit: tuple[int, int, int] | None = None
    activation: Value | None = None
    gradient: Value | None = None
    in_use: bool = False


@dataclass
class _Worker:
    pipeline: int
    stage: int
    stream: tuple[Instruction, ...]
    at: int = 0
    buffers: dict[int, _Buffer] = field(default_factory=dict[int, _Buffer])
    inboxes: dict[int, Value | None] = field(default_factory=dict[int, Value | None])
    """None while the message has not come."""
    summed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    finish: list[Opcode] = field(default_factory=list[Opcode])
    came: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    """Of a chunk and a part, how many rounds of it the worker has come to."""
    went: dict[tuple[int, str], list[_Done]] = field(default_factory=dict[tuple[int, str], list[_Done]])
    """Its work in each of them, and the buffer."""

    @property
    def ended(self) -> bool:
        return self.at >= len(self.stream)


class SymbolicMachine:
    """Runs one plan, one instruction of one worker at a time, with sends that wait for their receive."""

    def __init__(self, job: JobSpec, streams: Streams) -> None:
        self.job = job
        self.workers = {cell: _Worker(*cell, stream) for cell, stream in streams.items()}
        self.posts: dict[tuple[Cell, Cell], list[int]] = {}

    def run(self) -> None:
        """Raise WrongResultError unless every chunk sums the gradient of every micro-batch exactly once."""
        while any(not worker.ended for worker in self.workers.values()):
            if not any([self._advance(worker) for worker in self.workers.values()]):
                self._fail("stuck")
        units = [(p, m) for p in range(self.job.pipelines) for m in range(self.job.microbatches)]
        for chunk, stage in enumerate(self.job.chunk_stages):
            summed = [
                each for worker in self.workers.values() if worker.stage == stage for each in worker.summed
            ]
            if sorted(each[:2] for each in summed if each[2] == chunk) != units:
                self._fail("a gradient is missing or counted twice")
        for worker in self.workers.values():
            if any(buffer.in_use for buffer in worker.buffers.values()) or worker.inboxes:
                self._fail("something is left over")

    def _named(self, neighbour: int) -> Cell:
        return neighbour % self.job.pipelines, neighbour // self.job.pipelines

    def _fail(self, what: str) -> NoReturn:
        raise WrongResultError(what)

    def _advance(self, worker: _Worker) -> bool:
        if worker.ended:
            return False
        step = worker.stream[worker.at]
        if worker.finish and step.opcode < Opcode.BARRIER:
            self._fail("work after the end")
        if self.job.slots and step.opcode in _PART and not self._has_met(worker, step):
            return False
        handler = {
            Opcode.LOAD: self._load,
            Opcode.FORWARD: self._forward,
            Opcode.BACKWARD: self._backward,
            Opcode.BACKWARD_INPUT: self._backward,
            Opcode.BACKWARD_WEIGHT: self._backward_weight,
            Opcode.RECV_ACTIVATION: self._receive,
            Opcode.RECV_GRADIENT: self._receive,
            Opcode.SEND_ACTIVATION: self._send,
            Opcode.SEND_GRADIENT: self._send,
            Opcode.SERVE_FORWARD: self._serve,
            Opcode.SERVE_BACKWARD: self._serve_back,
            Opcode.SERVE_BACKWARD_INPUT: self._serve_back,
            Opcode.SERVE_BACKWARD_WEIGHT: self._serve_weight,
        }.get(step.opcode, self._finish)
        if not handler(worker, step):
            return False
        worker.at += 1
        return True

    def _has_met(self, worker: _Worker, step: Instruction) -> bool:
        """All holders of the chunk go through a round together, once each has what it works on; and what goes
        back is what went forward in the round of this number."""
        if step.inbox in worker.inboxes and worker.inboxes[step.inbox] is None:
            return False
        part = step.chunk, _PART[step.opcode]
        went = worker.went.setdefault(part, [])
        worker.came[part] = len(went) + 1
        holders = [each for each in self.workers.values() if each.stage == self._stage_of(step.chunk)]
        if any(each.came.get(part, 0) <= len(went) for each in holders):
            return False
        went.append((_unit(step), step.buffer))
        if part[1] == "B" and worker.went.get((step.chunk, "F"), [])[: len(went)][-1:] != went[-1:]:
            self._fail("a round goes back that is not the one that went forward")
        return True

    def _stage_of(self, chunk: int) -> int:
        if not 0 <= chunk < self.job.chunks:
            self._fail("no such chunk")
        return self.job.chunk_stages[chunk]

    def _serve(self, worker: _Worker, step: Instruction) -> bool:
        if not self.job.slots or self._stage_of(step.chunk) != worker.stage:
            self._fail("a service that nobody needs")
        if worker.buffers.setdefault(step.buffer, _Buffer()).in_use:
            self._fail("a buffer is overwritten")
        worker.buffers[step.buffer] = _Buffer(unit=_unit(step), in_use=True)
        return True

    def _serve_back(self, worker: _Worker, step: Instruction) -> bool:
        buffer = self._held(worker, step)
        if buffer.gradient is not None:
            self._fail("a service goes back twice")
        buffer.gradient = ("gradient", *_unit(step))
        buffer.in_use = step.opcode == Opcode.SERVE_BACKWARD_INPUT
        return True

    def _serve_weight(self, worker: _Worker, step: Instruction) -> bool:
        buffer = self._held(worker, step)
        if buffer.gradient is None:
            self._fail("weight gradient before input gradient")
        buffer.in_use = False
        return True

    def _load(self, worker: _Worker, step: Instruction) -> bool:
        buffer = worker.buffers.setdefault(step.buffer, _Buffer())
        if buffer.in_use:
            self._fail("a buffer is overwritten")
        worker.buffers[step.buffer] = _Buffer(loaded=_unit(step), in_use=True)
        return True

    def _forward(self, worker: _Worker, step: Instruction) -> bool:
        unit, chunk = _unit(step), step.chunk
        if chunk > 0 and not self._take(worker, step, ("activation", *unit[:2], chunk - 1)):
            return False
        buffer = worker.buffers.setdefault(step.buffer, _Buffer())
        if chunk in (0, self.job.chunks - 1):
            if buffer.loaded != unit or buffer.unit is not None:
                self._fail("forward without its data")
        elif buffer.in_use:
            self._fail("a buffer is overwritten")
        made = ("activation", *unit)
        worker.buffers[step.buffer] = _Buffer(unit, unit, made, in_use=True)
        return True

    def _backward(self, worker: _Worker, step: Instruction) -> bool:
        unit = _unit(step)
        needs_message = step.chunk < self.job.chunks - 1
        if needs_message and not self._take(worker, step, ("gradient", *unit[:2], step.chunk + 1)):
            return False
        buffer = self._held(worker, step)
        if buffer.gradient is not None:
            self._fail("backward twice")
        buffer.gradient = ("gradient", *unit)
        if step.opcode == Opcode.BACKWARD:
            worker.summed.append(unit)
            buffer.in_use = False
        elif not self.job.techniques.decouple:
            self._fail("split backward in a coupled plan")
        return True

    def _backward_weight(self, worker: _Worker, step: Instruction) -> bool:
        buffer = self._held(worker, step)
        if buffer.gradient is None:
            self._fail("weight gradient before input gradient")
        worker.summed.append(_unit(step))
        buffer.in_use = False
        return True

    def _held(self, worker: _Worker, step: Instruction) -> _Buffer:
        buffer = worker.buffers.get(step.buffer, _Buffer())
        if not buffer.in_use or buffer.unit != _unit(step):
            self._fail("a buffer does not hold what is expected")
        return buffer

    def _take(self, worker: _Worker, step: Instruction, expected: Value) -> bool:
        if step.inbox not in worker.inboxes:
            self._fail("an inbox is empty")
        message = worker.inboxes[step.inbox]
        if message is None:
            return False
        if message != expected:
            self._fail("the wrong message")
        del worker.inboxes[step.inbox]
        return True

    def _receive(self, worker: _Worker, step: Instruction) -> bool:
        if step.inbox in worker.inboxes:
            self._fail("an inbox is overwritten")
        worker.inboxes[step.inbox] = None
        pair = self._named(step.neighbour), (worker.pipeline, worker.stage)
        self.posts.setdefault(pair, []).append(step.inbox)
        return True

    def _send(self, worker: _Worker, step: Instruction) -> bool:
        buffer = worker.buffers.get(step.buffer, _Buffer())
        going_down = step.opcode == Opcode.SEND_ACTIVATION
        made = buffer.activation if going_down else buffer.gradient
        if made is None or made[1:] != _unit(step):
            self._fail("nothing to send")
        there = self._named(step.neighbour)
        posted = self.posts.get(((worker.pipeline, worker.stage), there), [])
        if not posted:
            return False
        self.workers[there].inboxes[posted.pop(0)] = made
        return True

    def _finish(self, worker: _Worker, step: Instruction) -> bool:
        """All workers do the same steps at the end; the order of those is all there is to check."""
        held = self.job.chunk_stages.count(worker.stage)
        each = [Opcode.OPTIMIZER, Opcode.GATHER] if self.job.owners else [Opcode.OPTIMIZER]
        wanted = [Opcode.REDUCE] * held + each * held
        wanted = [*wanted, Opcode.VALIDATE] if self.job.techniques.stagger else [Opcode.BARRIER, *wanted]
        if len(worker.finish) == len(wanted) or step.opcode != wanted[len(worker.finish)]:
            self._fail("an unexpected step at the end")
        if len(worker.stream) - worker.at != len(wanted) - len(worker.finish):
            self._fail("an incomplete end")
        worker.finish.append(step.opcode)
        return True


def _unit(step: Instruction) -> tuple[int, int, int]:
    return step.pipeline, step.microbatch, step.chunk


@dataclass(frozen=True)
class Times:
    """Result of a slow replay."""

    makespan: int
    period: int
    peak_memory: dict[Cell, int]


def slow_times(job: JobSpec, release: tuple[int, ...], streams: Streams) -> Times:
    """Start every op at its window, then push ops back until nothing moves any more."""
    lengths = {
        Opcode.FORWARD: job.forward,
        Opcode.BACKWARD_INPUT: job.backward_input,
        Opcode.BACKWARD_WEIGHT: job.backward_weight,
        Opcode.BACKWARD: tuple(map(sum, zip(job.backward_input, job.backward_weight, strict=True))),
    }
    queues = {cell: [step for step in stream if step.opcode in _COMPUTE] for cell, stream in streams.items()}
    ends: dict[tuple[str, int, int, int], int] = {}
    spans: dict[Cell, list[tuple[Instruction, int, int]]] = {}
    met: dict[tuple[int, str, int], int] = {}
    """When the last holder comes to each round of a chunk, where peers share experts."""
    for _ in range(2 * sum(map(len, queues.values())) + 1):
        before = {**ends}, {**met}
        for (host, stage), queue in queues.items():
            clock = release[stage]
            spans[host, stage] = []
            passed: Counter[tuple[int, str]] = Counter()
            for step in queue:
                start = max(clock, _arrival(job, ends, step))
                if job.slots and step.opcode in _PART:
                    part = step.chunk, _PART[step.opcode]
                    met[*part, passed[part]] = start = max(start, met.get((*part, passed[part]), 0))
                    passed[part] += 1
                clock = start + lengths[_SERVED.get(step.opcode, step.opcode)][step.chunk]
                spans[host, stage].append((step, start, clock))
                if step.opcode in _SERVED:
                    continue
                letter = {Opcode.FORWARD: "F", Opcode.BACKWARD_WEIGHT: "W"}.get(step.opcode, "B")
                ends[letter, *_unit(step)] = clock
        if before == (ends, met):
            break
    starts = [start for listed in spans.values() for _, start, _ in listed]
    makespan = max(ends.values()) - min(starts)
    peaks = {cell: _peak(job, listed) for cell, listed in spans.items()}
    return Times(makespan, _period(job, makespan, spans), peaks)


def _arrival(job: JobSpec, ends: dict[tuple[str, int, int, int], int], step: Instruction) -> int:
    chunk = step.chunk
    if step.opcode == Opcode.FORWARD and chunk > 0:
        return ends.get(("F", step.pipeline, step.microbatch, chunk - 1), 0) + job.transfer[chunk - 1]
    backward = step.opcode in (Opcode.BACKWARD, Opcode.BACKWARD_INPUT)
    if backward and chunk < job.chunks - 1:
        return ends.get(("B", step.pipeline, step.microbatch, chunk + 1), 0) + job.transfer[chunk]
    return 0


def _period(job: JobSpec, makespan: int, spans: dict[Cell, list[tuple[Instruction, int, int]]]) -> int:
    finish = [0] * job.stages
    for chunk, stage in enumerate(job.chunk_stages):
        finish[stage] += job.reduce[chunk] + job.optimizer[chunk] + job.gather[chunk]
    if not job.techniques.stagger:
        return makespan + max(finish)
    windows: list[int] = []
    for stage in range(job.stages):
        on_stage = [span for cell, listed in spans.items() if cell[1] == stage for span in listed]
        opens = min(start for _, start, _ in on_stage)
        windows.append(max(end for _, _, end in on_stage) - opens + finish[stage])
    return max(windows)


def _peak(job: JobSpec, listed: list[tuple[Instruction, int, int]]) -> int:
    held_at: list[int] = []
    for moment in sorted({start for _, start, _ in listed}):
        held = 0
        for step, start, end in listed:
            whole, kept = job.activation[step.chunk], job.kept_for_weight[step.chunk]
            opcode = _SERVED.get(step.opcode, step.opcode)
            if opcode == Opcode.FORWARD:
                held += whole * (start <= moment)
            elif opcode == Opcode.BACKWARD:
                held -= whole * (end <= moment)
            elif opcode == Opcode.BACKWARD_INPUT:
                held -= (whole - kept) * (end <= moment)
            else:
                held -= kept * (end <= moment)
        held_at.append(held)
    return max(held_at, default=0)
