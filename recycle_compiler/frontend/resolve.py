"""Syntax to a JobSpec: reads every block, whatever is wrong with the others."""

from pathlib import Path

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.check import Sections, read_names, report_missing
from recycle_compiler.frontend.diagnostics import Report, count, quote, spell
from recycle_compiler.frontend.gpt_model import read_model
from recycle_compiler.frontend.profile import Costs, read_profile_block, read_profile_file
from recycle_compiler.frontend.schema import MEMORY_UNITS
from recycle_compiler.frontend.shape import MOST_GPUS, Shape, read_shape
from recycle_compiler.frontend.syntax import Job, Listing, Name, Quantity, Setting
from recycle_compiler.frontend.values import (
    item_span,
    items_of,
    memory_unit_of,
    per_stage,
    read_amount,
    read_duration,
    read_share,
    read_whole,
)
from recycle_compiler.ir.job import MEMORY_SCALE, JobSpec, SolverOptions, Techniques

_LONGEST_NAME = 100
_MOST_SECONDS = 7 * 24 * 3600
_LARGEST_SEED = (1 << 31) - 1
Capacity = tuple[int | None, ...]
LARGEST_TOTAL = 1 << 54
"""Sums over a whole iteration stay below this, so that 64-bit columns never overflow."""


def resolve(job: Job, folder: Path, report: Report) -> JobSpec | None:
    """The job with every number resolved; None when the report says why not."""
    sections = read_names(job, report)
    report_missing(job, sections, report)
    _check_forms(job, sections, report)
    shape = read_shape(sections, report)
    costs = _read_costs(job, sections, shape, folder, report)
    techniques = read_techniques(sections)
    failures = read_failures(sections, shape, report)
    solver = read_solver(sections, report)
    setting = capacity_setting(sections)
    memory_unit = costs.memory_unit if costs else memory_unit_of([setting] if setting else [])
    capacity = read_capacity(setting, memory_unit, shape.stages, report)
    if capacity and costs:
        capacity = for_activations(capacity, costs, setting, report)
    # Narrowed one by one, so that the type checker sees what an error-free report implies.
    if not (shape.stages and shape.pipelines and shape.tensor and shape.microbatches):
        return None
    if costs is None or capacity is None or failures is None or solver is None:
        return None
    spec = JobSpec(
        name=job.name.text,
        stages=shape.stages,
        pipelines=shape.pipelines,
        tensor=shape.tensor,
        microbatches=shape.microbatches,
        unit=costs.unit,
        memory_unit=costs.memory_unit,
        capacity=capacity,
        techniques=techniques,
        failures=failures,
        solver=solver,
        **costs.per_stage(),
    )
    check_totals(spec, costs.span, report)
    return spec


def _read_costs(job: Job, sections: Sections, shape: Shape, folder: Path, report: Report) -> Costs | None:
    profile, model = sections.get("profile"), sections.get("model")
    if "device" in sections and not model:
        message = "`device` is given, but no model to run on it"
        report.error("conflict", message, sections["device"].span, "add `model gpt { ... }` or remove it")
    if profile and model:
        report.error("conflict", "a job has a profile or a model, not both", model.span, "remove one of them")
    if model:
        return read_model(model, sections, shape, report)
    if profile is None:
        hint = 'write `profile { ... }`, `profile from "file.json"`, or `model gpt { ... }` and `device a100`'
        report.error(
            "missing", f"job {quote(job.name.text)} does not say what its stages cost", job.name.span, hint
        )
        return None
    if profile.block.file:
        return read_profile_file(profile.block.file, folder, shape.stages, report)
    return read_profile_block(profile, capacity_setting(sections), shape.stages, report)


def _check_forms(job: Job, sections: Sections, report: Report) -> None:
    """Report an endless name, and `memory from "file"` and the like: only a profile comes from a file."""
    length = len(job.name.text)
    if length > _LONGEST_NAME:
        message = f"the name of a job has at most {_LONGEST_NAME} characters, got {length:,}"
        report.error("range", message, job.name.span, "choose a shorter name")
    for name, section in sections.items():
        if section.block.file and name != "profile":
            hint = f"write `{name} {{ ... }}`"
            report.error("conflict", f"block `{name}` cannot come from a file", section.block.file.span, hint)


def read_techniques(sections: Sections) -> Techniques:
    """The techniques that are on: all, unless the job lists some."""
    section = sections.get("techniques")
    if section is None:
        return Techniques()
    on = section.switches
    return Techniques("adaptive" in on, "decouple" in on, "stagger" in on)


def read_solver(sections: Sections, report: Report) -> SolverOptions | None:
    """The options of the solver; what is not said keeps its default."""
    default = SolverOptions()
    section = sections.get("solver")
    if section is None:
        return default
    settings = section.settings
    time_limit: int | None = default.time_limit_ns
    gap: int | None = default.gap_ppm
    seed: int | None = default.seed
    if setting := settings.get("time_limit"):
        time_limit = read_duration(setting, 1, _MOST_SECONDS * 10**9, report)
    if setting := settings.get("gap"):
        share = read_share(setting, report)
        gap = share.floor_of(10_000) if share else None
    if setting := settings.get("seed"):
        seed = read_whole(setting, report, 0, _LARGEST_SEED)
    if time_limit is None or gap is None or seed is None:
        return None
    return SolverOptions(time_limit, gap, seed)


def most_failures(stages: int, pipelines: int) -> int:
    """How many failures a plan can be made for: every stage keeps one live worker.

    That holds without re-routing too: peers are renamed so that failures share pipelines.
    """
    return stages * (pipelines - 1)


def read_failures(sections: Sections, shape: Shape, report: Report) -> int | None:
    """How many workers may fail; none unless the job says so."""
    section = sections.get("tolerate")
    setting = section.settings.get("failures") if section else None
    if setting is None:
        return 0
    share = isinstance(setting.value, Quantity) and setting.value.unit is not None
    if share:
        percent = read_share(setting, report)
        number = None
        if percent and shape.stages and shape.pipelines:
            number = percent.floor_of(shape.stages * shape.pipelines) // 100
    else:
        number = read_whole(setting, report, 0, MOST_GPUS)
    if number is not None and shape.stages and shape.pipelines:
        _check_survivable(number, shape.stages, shape.pipelines, setting, report)
    return number


def _check_survivable(failures: int, stages: int, pipelines: int, setting: Setting, report: Report) -> None:
    most = most_failures(stages, pipelines)
    if failures <= most:
        return
    size = f"{count(stages, 'stage')} x {count(pipelines, 'pipeline')}"
    message = f"{size} survive at most {count(most, 'failure')}, got {failures:,}"
    hint = "every stage needs one live worker: lower `failures` or raise `data`"
    report.error("too-many-failures", message, setting.value.span, hint, no_plan=True)


def capacity_setting(sections: Sections) -> Setting | None:
    """The `capacity` of the `memory` block, if there is one."""
    memory = sections.get("memory")
    return memory.settings.get("capacity") if memory else None


def read_capacity(
    setting: Setting | None, memory_unit: str, stages: int | None, report: Report
) -> Capacity | None:
    """Capacity per stage as stated, in the scale of the memory unit; None per stage is unlimited."""
    if setting is None:
        return None if stages is None else (None,) * stages
    items = items_of(setting.value)
    if items is None:
        hint = "write `80 GiB`, a plain count, or `unlimited`"
        message = f"capacity must be an amount, got {spell(setting.value)}"
        report.error("type", message, setting.value.span, hint)
        return None
    amounts: list[int | None] = []
    good = True
    for item in items:
        if isinstance(item, Name):
            amounts.append(None)
            good = _check_unlimited(item, report) and good
            continue
        amount = read_amount(item, "capacity", memory_unit, report)
        amounts.append(amount)
        good = amount is not None and good
    return per_stage(setting, tuple(amounts), stages, report) if good else None


def for_activations(capacity: Capacity, costs: Costs, setting: Setting | None, report: Report) -> Capacity:
    """Capacity less what is resident; reports stages that cannot hold one micro-batch."""
    if setting is None:
        return capacity
    left = tuple(
        None if whole is None else whole - taken
        for whole, taken in zip(capacity, costs.resident, strict=True)
    )
    short = {
        stage: needed - rest
        for stage, (rest, needed) in enumerate(zip(left, costs.activation, strict=True))
        if rest is not None and rest < needed
    }
    # One value for all stages is one mistake: the stage that needs most shows it.
    shown = (
        short if isinstance(setting.value, Listing) else sorted(short, key=lambda stage: -short[stage])[:1]
    )
    for stage in shown:
        _report_short(stage, capacity[stage] or 0, costs, setting, report)
    return left


def _report_short(stage: int, whole: int, costs: Costs, setting: Setting, report: Report) -> None:
    unit, resident = costs.memory_unit, costs.resident[stage]
    needs = f"one micro-batch on stage {stage} needs {spell_amount(costs.activation[stage], unit)}"
    if resident:
        needs += f" besides {spell_amount(resident, unit)} of weights, gradients and optimizer state"
    message = f"{needs}, capacity is {spell_amount(whole, unit)}"
    hint = "raise the capacity, or use smaller micro-batches or more stages"
    report.error("memory-too-small", message, item_span(setting, stage), hint, no_plan=True)


def spell_amount(amount: int, memory_unit: str) -> str:
    """An amount as people write it; bytes are rounded to two decimals of the largest fitting unit."""
    if memory_unit == "count":
        whole, rest = divmod(amount, MEMORY_SCALE["count"])
        return f"{whole}.{rest:03}".rstrip("0").rstrip(".")
    name, size = [pair for pair in MEMORY_UNITS.items() if pair[1] <= max(amount, 1)][-1]
    hundredths = (100 * amount + size // 2) // size
    whole, rest = divmod(hundredths, 100)
    return f"{whole}.{rest:02}".rstrip("0").rstrip(".") + f" {name}"


def _check_unlimited(word: Name, report: Report) -> bool:
    if word.text == "unlimited":
        return True
    message = f"capacity must be an amount or `unlimited`, got {quote(word.text)}"
    report.error("type", message, word.span, "did you mean `unlimited`?")
    return False


def check_totals(spec: JobSpec, span: Span, report: Report) -> None:
    """Report a job whose iteration, run op after op by one worker, could not be counted."""
    units = spec.pipelines * spec.microbatches
    per_unit = (
        sum(spec.forward) + sum(spec.backward_input) + sum(spec.backward_weight) + 2 * sum(spec.transfer)
    )
    ticks = units * per_unit + sum(spec.reduce) + sum(spec.optimizer)
    if ticks > LARGEST_TOTAL:
        longest = LARGEST_TOTAL // spec.ticks_per_unit
        got = ticks // spec.ticks_per_unit
        message = f"the ops of an iteration may add up to {longest:,} {spec.unit}, got {got:,}"
        report.error("too-large", message, span, "check the unit of the times")
    amount = units * sum(spec.activation)
    if amount > LARGEST_TOTAL:
        largest = LARGEST_TOTAL // spec.memory_scale
        message = (
            f"the activations of an iteration may add up to {largest:,}, got {amount // spec.memory_scale:,}"
        )
        report.error("too-large", message, span, "check the unit of `activation`")
