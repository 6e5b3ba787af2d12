"""The numbers of a job that the playground has sliders for, and the job text that they make.

What a page sends is checked here for its form only. Whether the numbers make a job is for the front end to
say: what is planned is the text that is shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
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
"""What is planned while somebody waits."""
_MOST_NUMBER = 1e15
_MOST_NAME = 100

Number = int | float


class SettingsError(Exception):
    """What a page has sent makes no sense, in one sentence."""


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
    """What a page has sent; SettingsError if it is not of the right form."""
    if not isinstance(value, dict):
        raise SettingsError("settings must be an object")
    found = cast(dict[str, Any], value)
    stages, pipelines, microbatches = (_whole(found, name, most) for name, most in MOST.items())
    failed = _failed(found.get("failed"), pipelines, stages)
    unit, name = found.get("unit"), found.get("name")
    if unit not in TICKS_PER_UNIT:
        raise SettingsError(f"unit must be one of {', '.join(TICKS_PER_UNIT)}")
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME:
        raise SettingsError(f"name must be a word of at most {_MOST_NAME} letters")
    settings = Settings(
        name=name,
        unit=unit,
        in_bytes=found.get("in_bytes") is True,
        stages=stages,
        pipelines=pipelines,
        tensor=_whole(found, "tensor", 1_000_000),
        microbatches=microbatches,
        values={name: _numbers(found, name, stages) for name in PER_STAGE},
        transfer=_numbers(found, "transfer", stages - 1),
        capacity=_capacity(found, stages),
        techniques=tuple(name for name in TECHNIQUES if name in _list(found, "techniques", len(TECHNIQUES))),
        tied=tuple(_index(each, stages) for each in _list(found, "tied", stages)),
        failed=failed,
    )
    if settings.ops > MOST_OPS:
        raise SettingsError(
            f"too large for the playground: {settings.ops:,} ops, allowed are {MOST_OPS:,}; "
            "`recyclec compile` plans it"
        )
    return settings


def _whole(found: dict[str, Any], name: str, most: int) -> int:
    value = found.get(name)
    if type(value) is not int or not 1 <= value <= most:
        raise SettingsError(f"{name} must be a whole number from 1 to {most:,}")
    return value


def _list(found: dict[str, Any], name: str, most: int) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list) or len(cast(list[Any], value)) > most:
        raise SettingsError(f"{name} must be a list of at most {most}")
    return cast(list[Any], value)


def _numbers(found: dict[str, Any], name: str, count: int) -> tuple[Number, ...]:
    values = _list(found, name, count)
    if len(values) != count:
        raise SettingsError(f"{name} must have {count} values, got {len(values)}")
    return tuple(_number(value, name) for value in values)


def _number(value: Any, name: str) -> Number:
    if type(value) not in (int, float) or not isfinite(value) or not 0 <= value <= _MOST_NUMBER:
        raise SettingsError(f"{name} must be numbers of at least 0")
    return value


def _capacity(found: dict[str, Any], stages: int) -> tuple[Number | None, ...]:
    values = _list(found, "capacity", stages)
    if len(values) != stages:
        raise SettingsError(f"capacity must have {stages} values, got {len(values)}")
    return tuple(None if value is None else _number(value, "capacity") for value in values)


def _index(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise SettingsError(f"a stage must be a whole number from 0 to {count - 1}")
    return value


def _failed(value: Any, pipelines: int, stages: int) -> FailureSet:
    workers = cast(list[Any], value) if isinstance(value, list) else []
    pairs = [cast(list[Any], worker) for worker in workers if isinstance(worker, list)]
    if not isinstance(value, list) or any(len(pair) != 2 for pair in pairs) or len(pairs) < len(workers):
        raise SettingsError("failed must be a list of [pipeline, stage]")
    return failure_set((_index(pipeline, pipelines), _index(stage, stages)) for pipeline, stage in pairs)
