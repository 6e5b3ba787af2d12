"""Streams as text that people read, and back. Standard library only.

    worker 0:1
        0  recv-activation   p0 m0    i0 <- 0:0
        1  forward           p0 m0    b0 <- i0
        2  send-activation   p0 m0    b0 -> 0:2
       ...
       12  optimizer

A worker is pipeline:stage, `p` and `m` are the micro-batch, `b` a buffer, `i` an inbox; `b-` and `i-` have no
number yet. The chunk is written, as in `p0 m0 c3`, where it is not the one with the number of the stage.
"""

import re
from collections.abc import Sequence

from recycle_runtime.plan.isa import (
    CONSUMES,
    NONE,
    RECEIVES,
    USES_BUFFER,
    USES_CHUNK,
    USES_MICROBATCH,
    USES_NEIGHBOUR,
    Instruction,
    Opcode,
)
from recycle_runtime.plan.worker_ids import Worker, cell_number, numbered_worker, worker_text

NAMES = {opcode: opcode.name.lower().replace("_", "-") for opcode in Opcode}
_OPCODES = {name: opcode for opcode, name in NAMES.items()}
_LINE = re.compile(
    r"(?P<position>\d+)\s+(?P<name>[a-z-]+)"
    r"(\s+p(?P<pipeline>\d+) m(?P<microbatch>\d+))?"
    r"(\s+c(?P<chunk>\d+))?"
    r"(\s+b(?P<buffer>\d+|-))?"
    r"(\s+(<-\s+)?i(?P<inbox>\d+|-))?"
    r"(\s+(<-|->)\s+(?P<neighbour>\d+):(?P<stage>\d+))?"
)


class AssemblyError(ValueError):
    """Text that is not assembly; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line
        self.what = what


def disassemble(stream: Sequence[Instruction], worker: Worker, pipelines: int) -> str:
    """The stream of a worker, a line for each instruction; `assemble` is the inverse."""
    lines = [f"worker {worker_text(worker)}"]
    for position, instruction in enumerate(stream):
        lines.append(f"{position:5}  {describe(instruction, worker, pipelines)}")
    return "\n".join(lines) + "\n"


def assemble(text: str, pipelines: int) -> tuple[Worker, tuple[Instruction, ...]]:
    """The worker and the stream that `disassemble` wrote; raises AssemblyError."""
    first, *rest = text.splitlines() or [""]
    head = re.fullmatch(r"worker (\d+):(\d+)", first)
    if head is None:
        raise AssemblyError(1, f"expected `worker PIPELINE:STAGE`, got `{first}`")
    worker = (int(head[1]), int(head[2]))
    stream: list[Instruction] = []
    for number, line in enumerate(rest, start=2):
        stream.append(_assemble_line(number, line, worker, pipelines, len(stream)))
    return worker, tuple(stream)


def stream_window(
    stream: Sequence[Instruction], position: int, worker: Worker, pipelines: int, around: int = 2
) -> str:
    """A few instructions around a position, with an arrow at it: where a run-time error happened."""
    lines: list[str] = []
    for near in range(max(0, position - around), min(len(stream), position + around + 1)):
        arrow = "->" if near == position else "  "
        lines.append(f"{arrow}{near:5}  {describe(stream[near], worker, pipelines)}")
    return "\n".join(lines)


def describe(instruction: Instruction, worker: Worker, pipelines: int) -> str:
    """One instruction of a worker in words."""
    opcode = instruction.opcode
    chunk = "" if instruction.chunk in (NONE, worker[1]) else f"c{instruction.chunk}"
    if opcode not in USES_BUFFER and opcode not in USES_MICROBATCH:
        return f"{NAMES[opcode]:<16}  {chunk}" if chunk else NAMES[opcode]
    is_of_one = opcode in USES_MICROBATCH
    unit = f"p{instruction.pipeline} m{instruction.microbatch} {chunk}" if is_of_one else chunk
    return f"{NAMES[opcode]:<16}  {unit:<8} {_operands(instruction, pipelines)}"


def _operands(instruction: Instruction, pipelines: int) -> str:
    opcode, buffer, inbox = instruction.opcode, _slot("b", instruction.buffer), _slot("i", instruction.inbox)
    if opcode not in USES_NEIGHBOUR:
        return buffer if instruction.inbox == NONE else f"{buffer} <- {inbox}"
    neighbour = worker_text(numbered_worker(instruction.neighbour, pipelines))
    return f"{inbox} <- {neighbour}" if opcode in RECEIVES else f"{buffer} -> {neighbour}"


def _slot(letter: str, number: int) -> str:
    return f"{letter}-" if number == NONE else f"{letter}{number}"


def _assemble_line(number: int, line: str, worker: Worker, pipelines: int, position: int) -> Instruction:
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise AssemblyError(number, f"expected a position and an instruction, got `{line.strip()}`")
    if int(match["position"]) != position:
        raise AssemblyError(number, f"expected position {position}, got {match['position']}")
    opcode = _OPCODES.get(match["name"])
    if opcode is None:
        raise AssemblyError(number, f"unknown instruction `{match['name']}`")
    _check_operands(number, match, opcode, pipelines)
    names = ("pipeline", "microbatch", "buffer", "inbox")
    fields = (NONE if match[name] in (None, "-") else int(match[name]) for name in names)
    chunk = NONE if opcode not in USES_CHUNK else int(match["chunk"] or worker[1])
    neighbour = NONE
    if opcode in USES_NEIGHBOUR:
        neighbour = cell_number((int(match["neighbour"]), int(match["stage"])), pipelines)
    return Instruction(opcode, chunk, *fields, neighbour=neighbour)


def _check_operands(number: int, match: re.Match[str], opcode: Opcode, pipelines: int) -> None:
    for name, users in (
        ("microbatch", USES_MICROBATCH),
        ("buffer", USES_BUFFER),
        ("inbox", RECEIVES),
        ("neighbour", USES_NEIGHBOUR),
    ):
        given = match[name] is not None
        if given != (opcode in users) and not (name == "inbox" and opcode in CONSUMES):
            raise AssemblyError(number, f"{match['name']} {'takes no' if given else 'needs a'} {name}")
    if match["chunk"] is not None and opcode not in USES_CHUNK:
        raise AssemblyError(number, f"{match['name']} takes no chunk")
    if opcode in USES_NEIGHBOUR and int(match["neighbour"]) >= pipelines:
        raise AssemblyError(
            number, f"the job has {pipelines} pipelines, there is no {match['neighbour']}:{match['stage']}"
        )
