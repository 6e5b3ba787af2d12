"""Small correct plans: jobs, and streams from text or from orders of ops."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.isa import NONE, USES_CHUNK, Instruction, Opcode
from tests.compiler.verifier.memory_bundle import Cell, Entry, MemoryBundle, Streams, instruction
from tests.support.jobs import unit_job

Orders = Mapping[Cell, str]
"""For each worker its ops in order; `F01` is the forward of micro-batch 1 of pipeline 0."""

_OPCODES = {
    "F": Opcode.FORWARD,
    "B": Opcode.BACKWARD,
    "I": Opcode.BACKWARD_INPUT,
    "W": Opcode.BACKWARD_WEIGHT,
}


def tiny_job(
    *,
    stages: int = 2,
    pipelines: int = 2,
    microbatches: int = 2,
    techniques: Techniques | None = None,
    **times: Any,
) -> JobSpec:
    """A job whose every op takes one tick, with two ticks of optimizer and one of reduction."""
    one = (1,) * stages
    ops = dict.fromkeys(("forward", "backward_input", "backward_weight", "reduce"), one)
    held = {"activation": one, "kept_for_weight": one}
    plain = unit_job(stages, pipelines, microbatches, techniques=techniques or Techniques())
    return replace(plain, name="tiny", **({**ops, **held, "optimizer": (2,) * stages} | times))


def found(bundle: MemoryBundle, rule: VerifierRule) -> list[Violation]:
    """The violations of one rule, when the bundle is verified as a whole."""
    return [violation for violation in verify_bundle(bundle) if violation.rule is rule]


def streams_from_text(text: str, pipelines: int = 2) -> Streams:
    """Streams as people write them: a line `worker P:S`, then one instruction a line."""
    streams: dict[Cell, list[Instruction]] = {}
    worker = (0, 0)
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("worker "):
            pipeline, stage = line.removeprefix("worker ").split(":")
            worker = (int(pipeline), int(stage))
        else:
            streams.setdefault(worker, []).append(instruction(line, worker, pipelines))
    return {worker: tuple(stream) for worker, stream in streams.items()}


def streams_from_orders(job: JobSpec, orders: Orders) -> Streams:
    """Sends behind their op, all receives in front: wasteful with inboxes, and never stuck."""
    ops = {
        worker: [(op[0], int(op[1]), int(op[2])) for op in text.split()] for worker, text in orders.items()
    }
    hosts = {
        (pipeline, microbatch, stage): host
        for (host, stage), listed in ops.items()
        for letter, pipeline, microbatch in listed
        if letter == "F"
    }
    bodies = {worker: _body(job, hosts, worker, listed) for worker, listed in ops.items()}
    return {worker: _with_receives(job, bodies, worker) for worker in bodies}


def _body(
    job: JobSpec, hosts: Mapping[tuple[int, int, int], int], worker: Cell, ops: list[tuple[str, int, int]]
) -> list[Instruction]:
    _, stage = worker
    body: list[Instruction] = []
    buffers: dict[tuple[int, int], int] = {}
    for letter, pipeline, microbatch in ops:
        unit = pipeline, microbatch
        if letter == "F":
            buffers[unit] = min(set(range(len(ops))) - set(buffers.values()))
            if stage in (0, job.stages - 1):
                body.append(Instruction(Opcode.LOAD, stage, *unit, buffers[unit]))
        body.append(Instruction(_OPCODES[letter], stage, *unit, buffers[unit]))
        if letter == "F" and stage < job.stages - 1:
            number = (stage + 1) * job.pipelines + hosts[(*unit, stage + 1)]
            body.append(Instruction(Opcode.SEND_ACTIVATION, stage, *unit, buffers[unit], NONE, number))
        if letter in "BI" and stage > 0:
            number = (stage - 1) * job.pipelines + hosts[(*unit, stage - 1)]
            body.append(Instruction(Opcode.SEND_GRADIENT, stage, *unit, buffers[unit], NONE, number))
        if letter in "BW":
            del buffers[unit]
    if job.techniques.stagger:
        tail = (Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.VALIDATE)
    else:
        tail = (Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER)
    return [*body, *(Instruction(each, stage if each in USES_CHUNK else NONE) for each in tail)]


def _with_receives(
    job: JobSpec, bodies: Mapping[Cell, list[Instruction]], worker: Cell
) -> tuple[Instruction, ...]:
    receives: list[Instruction] = []
    inboxes: dict[tuple[bool, int, int], int] = {}
    for (host, stage), body in sorted(bodies.items()):
        for sent in body:
            step = {Opcode.SEND_ACTIVATION: 1, Opcode.SEND_GRADIENT: -1}.get(sent.opcode, 0)
            if step == 0 or sent.neighbour != worker[1] * job.pipelines + worker[0]:
                continue
            inbox = inboxes.setdefault((step > 0, sent.pipeline, sent.microbatch), len(inboxes))
            opcode = Opcode.RECV_ACTIVATION if step > 0 else Opcode.RECV_GRADIENT
            unit, number = (sent.pipeline, sent.microbatch), stage * job.pipelines + host
            receives.append(Instruction(opcode, worker[1], *unit, NONE, inbox, number))
    filled: list[Instruction] = []
    for step in bodies[worker]:
        consumes = step.opcode in (Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT)
        key = (step.opcode == Opcode.FORWARD, step.pipeline, step.microbatch)
        filled.append(step._replace(inbox=inboxes[key]) if consumes and key in inboxes else step)
    return (*receives, *filled)


SPLIT_TEXT = """
worker 0:0
  load p0 m0 b0
  forward p0 m0 b0
  recv_gradient p0 m0 i0 @0
  send_activation p0 m0 b0 @0
  load p0 m1 b1
  forward p0 m1 b1
  send_activation p0 m1 b1 @0
  backward_input p0 m0 b0 i0
  recv_gradient p0 m1 i0 @0
  backward_weight p0 m0 b0
  backward_input p0 m1 b1 i0
  backward_weight p0 m1 b1
  reduce
  optimizer
  validate
worker 1:0
  load p1 m0 b0
  forward p1 m0 b0
  recv_gradient p1 m0 i0 @0
  send_activation p1 m0 b0 @0
  recv_gradient p1 m1 i1 @0
  load p1 m1 b1
  forward p1 m1 b1
  send_activation p1 m1 b1 @0
  backward_input p1 m0 b0 i0
  backward_weight p1 m0 b0
  backward_input p1 m1 b1 i1
  backward_weight p1 m1 b1
  reduce
  optimizer
  validate
worker 0:1
  recv_activation p0 m0 i0 @0
  recv_activation p1 m0 i1 @1
  load p0 m0 b0
  forward p0 m0 b0 i0
  recv_activation p0 m1 i0 @0
  backward_input p0 m0 b0
  send_gradient p0 m0 b0 @0
  load p1 m0 b1
  forward p1 m0 b1 i1
  recv_activation p1 m1 i1 @1
  backward_input p1 m0 b1
  send_gradient p1 m0 b1 @1
  load p0 m1 b2
  forward p0 m1 b2 i0
  backward_input p0 m1 b2
  send_gradient p0 m1 b2 @0
  load p1 m1 b3
  forward p1 m1 b3 i1
  backward_input p1 m1 b3
  send_gradient p1 m1 b3 @1
  backward_weight p0 m0 b0
  backward_weight p1 m0 b1
  backward_weight p0 m1 b2
  backward_weight p1 m1 b3
  reduce
  optimizer
  validate
"""


def split_plan() -> MemoryBundle:
    """Two stages, two pipelines, two micro-batches; worker 1:1 has failed, and 0:1 does all of its work.

    Stage 1 runs without a gap from 1 to 13, so its period of 12 + 3 is what its load alone takes.
    """
    entry = Entry(failed=((1, 1),), makespan=13, period=15, lower_bound=15)
    return MemoryBundle(tiny_job(), (entry,), (streams_from_text(SPLIT_TEXT),))


COUPLED_ORDERS = {
    (0, 0): "F00 F01 B00 B01",
    (1, 0): "F10 F11 B10 B11",
    (0, 1): "F00 B00 F01 B01",
    (1, 1): "F10 B10 F11 B11",
}


def coupled_plan() -> MemoryBundle:
    """1F1B on two healthy pipelines, with a barrier before the optimizer."""
    job = tiny_job(techniques=Techniques(adaptive=False, decouple=False, stagger=False))
    entry = Entry(makespan=9, period=12, lower_bound=9)
    return MemoryBundle(job, (entry,), (streams_from_orders(job, COUPLED_ORDERS),))
