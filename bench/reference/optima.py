"""The file of proven optima: one job a line, times in slots and memory in activations counted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recycle_compiler.ir.job import MEMORY_SCALE, TICKS_PER_UNIT, JobSpec, SolverOptions, Techniques

_SHAPE = ("stages", "pipelines", "microbatches")
_TIMES = ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer")
_AMOUNTS = ("activation", "kept_for_weight", "capacity")
_SLOT = TICKS_PER_UNIT["slot"]
_COUNT = MEMORY_SCALE["count"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """A job, its failures, and between which periods (in ticks) its optimum lies."""

    seed: int
    job: JobSpec
    failed_per_stage: tuple[int, ...]
    lower_bound: int
    best: int

    @property
    def optimum(self) -> int | None:
        """The least period in ticks, where it is settled."""
        return self.best if self.lower_bound == self.best else None


def load_optima(path: Path) -> Iterator[Optimum]:
    """Read the file line by line."""
    with path.open(encoding="ascii") as lines:
        for line in lines:
            yield parse_optimum(line)


def print_optimum(entry: Optimum) -> str:
    """One line of the file; `parse_optimum` is its inverse."""
    job = entry.job
    fields: dict[str, Any] = {"seed": entry.seed, "failed": entry.failed_per_stage}
    fields["optimum"] = None if entry.optimum is None else entry.optimum // _SLOT
    fields |= {"bound": entry.lower_bound // _SLOT, "best": entry.best // _SLOT}
    fields |= {name: getattr(job, name) for name in _SHAPE}
    fields |= {name: [value // _SLOT for value in getattr(job, name)] for name in _TIMES}
    for name in _AMOUNTS:
        fields[name] = [None if value is None else value // _COUNT for value in getattr(job, name)]
    fields["techniques"] = job.techniques.names
    return json.dumps(fields, separators=(",", ":")) + "\n"


def parse_optimum(line: str) -> Optimum:
    """Read what `print_optimum` wrote."""
    fields: dict[str, Any] = json.loads(line)
    failed = tuple(fields["failed"])
    times = {name: tuple(value * _SLOT for value in fields[name]) for name in _TIMES}
    amounts = {
        name: tuple(None if value is None else value * _COUNT for value in fields[name]) for name in _AMOUNTS
    }
    on = fields["techniques"]
    values: dict[str, Any] = {name: fields[name] for name in _SHAPE} | times | amounts
    job = JobSpec(
        name=f"random{fields['seed']}",
        tensor=1,
        unit="slot",
        memory_unit="count",
        parameters=(0,) * fields["stages"],
        techniques=Techniques("adaptive" in on, "decouple" in on, "stagger" in on),
        failures=sum(failed),
        solver=SolverOptions(),
        **values,
    )
    return Optimum(fields["seed"], job, failed, fields["bound"] * _SLOT, fields["best"] * _SLOT)
