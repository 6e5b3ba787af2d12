"""The numbers of a job that the playground has sliders for, and the job text that they make.

What a page sends is checked here for its form only. Whether the numbers make a job is for the front end to
say: what is planned is the text that is shown.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

from recycle_compiler.frontend import format_job
from recycle_compiler.ir.failure import FailureSet, failure_set
from recycle_compiler.ir.job import TICKS_PER_UNIT, JobSpec
from recycle_compiler.ir.units import in_memory_unit, in_unit

PER_STAGE = (
    "forward",
    "backward_input",
    "backward_weight",
    "optimizer",
    "reduce",
    "activation",
    "kept_for_weight",
)
TECHNIQUES = ("adaptive", "decouple", "stagger")
MOST = {"stages": 64, "pipelines": 64, "microbatches": 256}
MOST_OPS = 60_000
"""Ops of the largest job that is planned while somebody waits."""
_MOST_NUMBER = 1e15
_MOST_NAME = 100
_MOST_SHOWN = 40
"""Letters of a value that a message shows."""

Number = int | float
Fits = Callable[[Any], bool]
"""A test of a JSON value: is it of the right form?"""


class SettingsError(Exception):
    """Mistake in what a page has sent, in one sentence."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values per stage are in the unit of the job; memory is counted in activations, or in bytes."""

    name: str
    unit: str
    in_bytes: bool
    stages: int
    pipelines: int
    tensor: int
    microbatches: int
    values: dict[str, tuple[Number, ...]]
    """By the names of PER_STAGE."""
    transfer: tuple[Number, ...]
    """One value fewer than there are stages."""
    capacity: tuple[Number | None, ...]
    techniques: tuple[str, ...]
    tied: tuple[int, ...]
    failed: FailureSet

    @property
    def ops(self) -> int:
        """About as many as a plan has."""
        return 3 * self.stages * self.pipelines * self.microbatches

    def document(self) -> dict[str, Any]:
        """As a page sends it back."""
        return {
            "name": self.name,
            "unit": self.unit,
            "in_bytes": self.in_bytes,
            "stages": self.stages,
            "pipelines": self.pipelines,
            "tensor": self.tensor,
            "microbatches": self.microbatches,
            **{name: list(values) for name, values in self.values.items()},
            "transfer": list(self.transfer),
            "capacity": list(self.capacity),
            "techniques": list(self.techniques),
            "tied": list(self.tied),
            "failed": [list(worker) for worker in self.failed],
        }

    def text(self) -> str:
        """The job file, in canonical form."""
        scale = " B" if self.in_bytes else ""
        times = ("forward", "backward_input", "backward_weight", "optimizer", "reduce")
        work = [f"{name} = {_listed(self.values[name])}" for name in times]
        transfer = f"transfer = {_listed(self.transfer)}" if self.stages > 1 else ""
        memory = [f"{name} = {_listed(self.values[name], scale)}" for name in PER_STAGE[5:]]
        lines = [" ".join(work[:3]), " ".join([*work[3:], transfer]), " ".join(memory)]
        tied = f"  tied = [{', '.join(map(str, self.tied))}]" if self.tied else ""
        unlimited = None in self.capacity
        capacity = "unlimited" if unlimited else _listed(cast(Sequence[Number], self.capacity), scale)
        source = (
            f"job {self.name} {{\n"
            f"parallel {{ pipeline = {self.stages} data = {self.pipelines} tensor = {self.tensor}{tied} }}\n"
            f"batch {{ microbatches = {self.microbatches} }}\n"
            f"profile {{ unit = {self.unit}\n{chr(10).join(lines)}\n}}\n"
            f"memory {{ capacity = {capacity} }}\n"
            f"techniques {{ {' '.join(self.techniques)} }}\n"
            f"tolerate {{ failures = {len(self.failed)} }}\n}}\n"
        )
        return format_job(source, f"{self.name}.job")


def _listed(values: Sequence[Number], scale: str = "") -> str:
    """One value where all are alike."""
    texts = [f"{Decimal(repr(value)):f}{scale}" for value in values]
    return texts[0] if len(set(texts)) == 1 else f"[{', '.join(texts)}]"


def settings_of(job: JobSpec) -> Settings:
    """The numbers of a job, stage by stage; SettingsError for one that they cannot tell."""
    if not job.has_chunk_per_stage:
        raise SettingsError("its workers hold several chunks each, and the playground has one for each stage")
    if job.slots:
        raise SettingsError("its workers share experts, and plans of the playground are not in rounds")
    if job.sharding is not None:
        raise SettingsError("its workers share out the optimizer's state, and those of the playground do not")
    in_bytes = job.memory_unit != "count"

    def times(values: Sequence[int]) -> tuple[Number, ...]:
        return tuple(in_unit(job, value) for value in values)

    def amounts(values: Sequence[int]) -> tuple[Number, ...]:
        return tuple(in_memory_unit(job, value) for value in values)

    return Settings(
        name=job.name,
        unit=job.unit,
        in_bytes=in_bytes,
        stages=job.stages,
        pipelines=job.pipelines,
        tensor=job.tensor,
        microbatches=job.microbatches,
        values={
            **{name: times(getattr(job, name)) for name in PER_STAGE[:5]},
            **{name: amounts(getattr(job, name)) for name in PER_STAGE[5:]},
        },
        transfer=times(job.transfer),
        capacity=tuple(None if each is None else in_memory_unit(job, each) for each in job.capacity),
        techniques=job.techniques.names,
        tied=job.tied_chunks,
        failed=(),
    )


def read_settings(value: Any) -> Settings:
    """Settings that a page has sent; SettingsError if they are not of the right form."""
    if not isinstance(value, dict):
        raise SettingsError("settings must be an object")
    found = cast(dict[str, Any], value)
    stages, pipelines, microbatches = (_whole(found, name, most) for name, most in MOST.items())
    techniques = _list(found, "techniques", _is_one_of(TECHNIQUES), f"words out of {', '.join(TECHNIQUES)}")
    settings = Settings(
        name=_field(found, "name", _is_name, f"a word of at most {_MOST_NAME} letters"),
        unit=_field(found, "unit", _is_one_of(TICKS_PER_UNIT), f"one of {', '.join(TICKS_PER_UNIT)}"),
        in_bytes=_field(found, "in_bytes", _is_one_of((True, False)), "true or false"),
        stages=stages,
        pipelines=pipelines,
        tensor=_whole(found, "tensor", 1_000_000),
        microbatches=microbatches,
        values={name: _numbers(found, name, stages, _is_number) for name in PER_STAGE},
        transfer=_numbers(found, "transfer", stages - 1, _is_number),
        capacity=_numbers(found, "capacity", stages, lambda each: each is None or _is_number(each)),
        techniques=tuple(name for name in TECHNIQUES if name in techniques),
        tied=tuple(_list(found, "tied", _is_whole(0, stages - 1), f"stages from 0 to {stages - 1}")),
        failed=_failed(found, pipelines, stages),
    )
    if settings.ops > MOST_OPS:
        raise SettingsError(
            f"too large for the playground: {settings.ops:,} ops, allowed are {MOST_OPS:,}; "
            "`recyclec compile` plans it"
        )
    return settings


def _field(found: dict[str, Any], name: str, fits: Fits, form: str) -> Any:
    """One field; SettingsError unless it fits. All fields are read here, and each may be any JSON value."""
    value = found.get(name)
    if not fits(value):
        text = json.dumps(value)
        short = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        raise SettingsError(f"{name} must be {form}, got {short}")
    return value


def _list(found: dict[str, Any], name: str, fits: Fits, form: str, count: int | None = None) -> list[Any]:
    """A field of values that all fit, as many as `count` says, if it does."""

    def all_fit(value: Any) -> bool:
        values = cast(list[Any], value) if isinstance(value, list) else None
        return values is not None and count in (None, len(values)) and all(map(fits, values))

    return _field(found, name, all_fit, f"a list of {form}")


def _whole(found: dict[str, Any], name: str, most: int) -> int:
    return _field(found, name, _is_whole(1, most), f"a whole number from 1 to {most:,}")


def _numbers(found: dict[str, Any], name: str, count: int, fits: Fits) -> tuple[Any, ...]:
    return tuple(_list(found, name, fits, f"{count} numbers from 0 to {_MOST_NUMBER:g}", count))


def _failed(found: dict[str, Any], pipelines: int, stages: int) -> FailureSet:
    is_pipeline, is_stage = _is_whole(0, pipelines - 1), _is_whole(0, stages - 1)

    def is_worker(value: Any) -> bool:
        pair = cast(list[Any], value) if isinstance(value, list) else []
        return len(pair) == 2 and is_pipeline(pair[0]) and is_stage(pair[1])

    form = f"[pipeline, stage], pipelines from 0 to {pipelines - 1} and stages from 0 to {stages - 1}"
    return failure_set((pipeline, stage) for pipeline, stage in _list(found, "failed", is_worker, form))


def _is_whole(least: int, most: int) -> Fits:
    return lambda value: type(value) is int and least <= value <= most


def _is_one_of(allowed: Iterable[Any]) -> Fits:
    # Compared one by one: what a page sends may be nothing that a dict can look up, and 1 is not true.
    return lambda value: any(type(value) is type(each) and value == each for each in allowed)


def _is_number(value: Any) -> bool:
    # Not a number is not in this range, nor is infinity.
    return type(value) in (int, float) and 0 <= value <= _MOST_NUMBER


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME
