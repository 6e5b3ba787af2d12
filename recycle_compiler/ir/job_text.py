"""The resolved job as lines of exact integers: the head of every IR text, and what a bundle keeps.

job figure3
shape stages 4 pipelines 3 tensor 1 microbatches 6
units slot count
forward 1000 1000 1000 1000
...
capacity 4000 3000 unlimited 1000
techniques adaptive decouple stagger
failures 3
solver time_limit_ns 60000000000 gap_ppm 10000 seed 0

Where stages do not hold one chunk each, in order, `chunks 0 1 1 0` says which stage holds each chunk.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from recycle_compiler.ir.job import PER_CHUNK, JobSpec, SolverOptions, Techniques

_SHAPE = ("stages", "pipelines", "tensor", "microbatches")
_SOLVER = ("time_limit_ns", "gap_ppm", "seed")


@dataclass
class TextError(Exception):
    """IR text that cannot be read; `line` counts from 1, 0 when it is about the whole text."""

    line: int
    what: str

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
    lines.append(" ".join(("techniques", *job.techniques.names)))
    lines += [f"failures {job.failures}", f"solver {solver}"]
    return "\n".join(lines) + "\n"


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
    if fields.keys() - {"chunks"} != expected:
        odd = sorted((fields.keys() ^ expected) - {"chunks"})
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
    return JobSpec(
        name=name,
        unit=unit,
        memory_unit=memory_unit,
        techniques=Techniques(*(word in techniques for word in ("adaptive", "decouple", "stagger"))),
        failures=int(failures),
        solver=SolverOptions(**_pairs(fields["solver"], _SOLVER)),
        chunk_stages=tuple(int(word) for word in fields.get("chunks", ())),
        **shape,
        **per_chunk,
    )


def _pairs(words: list[str], names: tuple[str, ...]) -> dict[str, int]:
    if tuple(words[0::2]) != names:
        raise ValueError(f"expected {' '.join(names)}, got {' '.join(words[0::2])}")
    return {name: int(value) for name, value in zip(names, words[1::2], strict=True)}


def _number(word: str) -> int | None:
    return None if word == "unlimited" else int(word)
