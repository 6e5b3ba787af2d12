"""Programs made by hand-sized rules, so that the bundle can be tested without the planner.

A greedy slot-by-slot schedule stands in for a plan: gradients first, then forwards within the
memory of 1F1B, then weight gradients. Micro-batches of failed workers go to live peers.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from recycle_compiler.ir.failure import FailureSet, Worker, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Claims, Streams
from recycle_runtime.plan.isa import CONSUMES, NONE, Instruction, Opcode
from tests.support.jobs import unit_job

Unit = tuple[int, int]
"""A micro-batch of any pipeline: (pipeline, microbatch)."""
Step = tuple[int, Opcode, Unit]
"""When a compute instruction starts, and on what."""
Hosts = Callable[[Unit, int], int]


def job(stages: int, pipelines: int, microbatches: int) -> JobSpec:
    """A job of unit times."""
    plain = unit_job(stages, pipelines, microbatches, optimizer=1)
    return replace(plain, name="synthetic", failures=min(3, stages * pipelines))


def program(
    spec: JobSpec, failed: Iterable[tuple[int, int]] = (), *, split: bool = True, seed: int | None = None
) -> Streams:
    """The streams of a greedy plan; work of failed workers goes round, or at random when there is a seed."""
    gone = failure_set(failed)
    hosts = _hosts(spec, gone, seed)
    steps = _schedule(spec, gone, hosts, split)
    workers = tuple(sorted(steps, key=lambda worker: (worker.stage, worker.pipeline)))
    streams = _streams(spec, steps, hosts)
    return program_from(spec, {worker: streams[worker] for worker in workers}, gone)


def program_from(spec: JobSpec, streams: dict[Worker, list[Instruction]], failed: FailureSet = ()) -> Streams:
    """A program of these very streams; the workers must come sorted by stage, then pipeline."""
    rows = [tuple(map(int, instruction)) for stream in streams.values() for instruction in stream]
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 7)
    lengths = [0, *(len(stream) for stream in streams.values())]
    return Streams(
        spec,
        failed,
        tuple(1000 * stage for stage in range(spec.stages)),
        Claims(27000 + len(failed), 30000 + len(failed), 30000, f"load of stage {len(failed)}"),
        tuple(streams),
        np.cumsum(lengths, dtype=np.int64),
        *(np.ascontiguousarray(columns[:, index]) for index in range(7)),
    )


def compute_ops(programs: Iterable[Streams]) -> int:
    """Numbers of F, B, I and W in the streams."""
    compute = [Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT]
    return sum(int(np.isin(program.opcode, compute).sum()) for program in programs)


def _hosts(spec: JobSpec, failed: FailureSet, seed: int | None) -> Hosts:
    dice = random.Random(seed)
    table: dict[tuple[int, Unit], int] = {}
    for stage in range(spec.stages):
        live = [p for p in range(spec.pipelines) if Worker(p, stage) not in failed]
        turn = 0
        for microbatch in range(spec.microbatches):
            for pipeline in range(spec.pipelines):
                host = pipeline
                if pipeline not in live:
                    host = live[turn % len(live)] if seed is None else dice.choice(live)
                    turn += 1
                table[stage, (pipeline, microbatch)] = host
    return lambda unit, stage: table[stage, unit]


def _schedule(spec: JobSpec, failed: FailureSet, hosts: Hosts, split: bool) -> dict[Worker, list[Step]]:
    grid = (Worker(pipeline, stage) for stage in range(spec.stages) for pipeline in range(spec.pipelines))
    steps: dict[Worker, list[Step]] = {worker: [] for worker in grid if worker not in failed}
    ready: dict[Worker, list[deque[tuple[int, Unit]]]] = {
        worker: [deque(), deque(), deque()] for worker in steps
    }
    held = dict.fromkeys(steps, 0)
    left = 0
    for microbatch in range(spec.microbatches):
        for pipeline in range(spec.pipelines):
            ready[Worker(hosts((pipeline, microbatch), 0), 0)][1].append((0, (pipeline, microbatch)))
            left += spec.stages * (3 if split else 2)
    backward = Opcode.BACKWARD_INPUT if split else Opcode.BACKWARD
    now = 0
    while left:
        for worker, (gradients, forwards, weights) in ready.items():
            stage = worker.stage
            if gradients and gradients[0][0] <= now:
                _, unit = gradients.popleft()
                steps[worker].append((now, backward, unit))
                if stage:
                    ready[Worker(hosts(unit, stage - 1), stage - 1)][0].append((now + 1, unit))
                if split:
                    weights.append((now + 1, unit))
                else:
                    held[worker] -= 1
            elif forwards and forwards[0][0] <= now and held[worker] < spec.stages - stage:
                _, unit = forwards.popleft()
                steps[worker].append((now, Opcode.FORWARD, unit))
                held[worker] += 1
                below = stage + 1 if stage + 1 < spec.stages else stage
                ready[Worker(hosts(unit, below), below)][below > stage].append((now + 1, unit))
            elif weights and weights[0][0] <= now:
                _, unit = weights.popleft()
                steps[worker].append((now, Opcode.BACKWARD_WEIGHT, unit))
                held[worker] -= 1
            else:
                continue
            left -= 1
        now += 1
    return steps


def _streams(spec: JobSpec, steps: dict[Worker, list[Step]], hosts: Hosts) -> dict[Worker, list[Instruction]]:
    """Sends follow their op; a receive stands before its op, after those that the sender sent earlier."""
    sent: dict[tuple[Worker, Worker, Opcode], deque[Unit]] = {}
    for worker, steps_here in steps.items():
        for _, opcode, unit in steps_here:
            if (target := _target(spec, worker, opcode, unit, hosts)) is not None:
                sent.setdefault((worker, target, _message(opcode)), deque()).append(unit)
    return {worker: _stream(spec, worker, steps[worker], hosts, sent) for worker in steps}


def _target(spec: JobSpec, worker: Worker, opcode: Opcode, unit: Unit, hosts: Hosts) -> Worker | None:
    stage = worker.stage + {Opcode.FORWARD: 1, Opcode.BACKWARD_WEIGHT: spec.stages}.get(opcode, -1)
    return Worker(hosts(unit, stage), stage) if 0 <= stage < spec.stages else None


def _message(opcode: Opcode) -> Opcode:
    return Opcode.RECV_ACTIVATION if opcode is Opcode.FORWARD else Opcode.RECV_GRADIENT


def _stream(
    spec: JobSpec,
    worker: Worker,
    steps: list[Step],
    hosts: Hosts,
    sent: dict[tuple[Worker, Worker, Opcode], deque[Unit]],
) -> list[Instruction]:
    stream: list[Instruction] = []
    buffers: dict[Unit, int] = {}
    inboxes: dict[Unit, int] = {}
    for _, opcode, unit in steps:
        if opcode is Opcode.FORWARD:
            buffers[unit] = _lowest_free(buffers)
            if worker.stage in (0, spec.stages - 1):
                stream.append(Instruction(Opcode.LOAD, worker.stage, *unit, buffer=buffers[unit]))
        source = worker.stage - 1 if opcode is Opcode.FORWARD else worker.stage + 1
        if opcode in CONSUMES and 0 <= source < spec.stages and unit not in inboxes:
            origin = Worker(hosts(unit, source), source)
            waiting = sent[origin, worker, _message(opcode)]
            while unit not in inboxes:
                arriving = waiting.popleft()
                inboxes[arriving] = _lowest_free(inboxes)
                stream.append(
                    Instruction(
                        _message(opcode),
                        worker.stage,
                        *arriving,
                        inbox=inboxes[arriving],
                        neighbour=origin.stage * spec.pipelines + origin.pipeline,
                    )
                )
        inbox = inboxes.pop(unit, NONE) if opcode in CONSUMES else NONE
        stream.append(Instruction(opcode, worker.stage, *unit, buffer=buffers[unit], inbox=inbox))
        if (target := _target(spec, worker, opcode, unit, hosts)) is not None:
            send = Opcode.SEND_ACTIVATION if opcode is Opcode.FORWARD else Opcode.SEND_GRADIENT
            neighbour = target.stage * spec.pipelines + target.pipeline
            stream.append(Instruction(send, worker.stage, *unit, buffer=buffers[unit], neighbour=neighbour))
        if opcode in (Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT):
            del buffers[unit]
    ending = (Instruction(Opcode.REDUCE, worker.stage), Instruction(Opcode.OPTIMIZER, worker.stage))
    return [*stream, *ending, Instruction(Opcode.VALIDATE)]


def _lowest_free(taken: dict[Unit, int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken.values())
