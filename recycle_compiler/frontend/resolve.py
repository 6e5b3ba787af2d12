"""Syntax to a JobSpec: reads every block, whatever is wrong with the others."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recycle_compiler.diagnostics import Span
from recycle_compiler.frontend.capacity import Capacity, capacity_setting, for_activations, read_capacity
from recycle_compiler.frontend.check import Section, Sections, read_names, report_missing
from recycle_compiler.frontend.costs import STEADY, ChunkCosts, Cut, LayeredCosts, MeasuredLayers, Variation
from recycle_compiler.frontend.cut import (
    check_recut,
    read_grouping,
    read_recut,
    read_start,
    refuse_layer_settings,
)
from recycle_compiler.frontend.diagnostics import Mistakes, quantity, quote
from recycle_compiler.frontend.experts import check_room, read_experts
from recycle_compiler.frontend.gpt_model import read_model
from recycle_compiler.frontend.layers import read_layers_block
from recycle_compiler.frontend.optimizer_state import StateRules, read_owners
from recycle_compiler.frontend.profile import read_profile_block
from recycle_compiler.frontend.profile_file import read_profile_file
from recycle_compiler.frontend.shape import MOST_GPUS, GivenShape, read_shape
from recycle_compiler.frontend.split import read_split
from recycle_compiler.frontend.syntax import Job, Listing, Quantity, SyntaxSetting
from recycle_compiler.frontend.ties import Ties, read_ties
from recycle_compiler.frontend.values import memory_unit_of, read_duration, read_share, read_whole
from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from recycle_compiler.ir.layout import shared_out
from recycle_compiler.ir.sharding import shares_of

_LONGEST_NAME = 100
_MOST_SECONDS = 7 * 24 * 3600
_LARGEST_SEED = (1 << 31) - 1
LARGEST_TOTAL = 1 << 54
"""Sums over a whole iteration stay below this, so that 64-bit columns never overflow."""
_SOURCES = ("profile", "layers", "model")
"""Blocks that say what a job costs."""


def resolve(job: Job, folder: Path, report: Mistakes) -> JobSpec | None:
    """The job with every number resolved; None when the report says why not."""
    sections = read_names(job, report)
    report_missing(job, sections, report)
    _check_forms(job, sections, report)
    shape = read_shape(sections, report)
    techniques = read_techniques(sections)
    owners = read_owners(sections, shape, report)
    experts = read_experts(sections, owners, techniques, report)
    state = StateRules(owners or 0, techniques.stagger, experts.slots if experts else 0)
    source = _read_costs(job, sections, shape, state, folder, report)
    failures = read_failures(sections, shape, report)
    solver = read_solver(sections, report)
    placed = _place(source, failures, state, sections, shape, report)
    variation = _read_variation(sections, source, report)
    # Narrowed one by one, so that the type checker sees what an error-free report implies.
    if placed is None or shape.tensor is None or failures is None or solver is None or owners is None:
        return None
    costs = placed.costs
    ties = read_ties(sections, source, report) if source else None
    if ties is None or experts is None:
        return None
    if costs.exchange and not experts.slots:
        setting = _costs_of(sections).settings.get("exchange")
        message = "`exchange` is given, and the job has no experts that peers share"
        report.error(
            "conflict",
            message,
            setting.key.span if setting else costs.span,
            "add `experts { slots = 2 }`, or remove it",
        )
    spec = JobSpec(
        name=job.name.text,
        stages=len(costs.forward),
        pipelines=placed.pipelines,
        tensor=shape.tensor,
        microbatches=placed.microbatches,
        unit=costs.unit,
        memory_unit=costs.memory_unit,
        capacity=placed.capacity,
        techniques=techniques,
        failures=failures,
        solver=solver,
        overhead=placed.overhead,
        **experts._asdict(),
        **variation._asdict(),
        **costs.per_stage(),
        **placed.layered,
    )
    spec = _with_ties(spec, ties, placed.cut)
    if owners:
        shards, absent = (placed.pipelines,) * spec.stages, (0,) * spec.stages
        spec = shared_out(spec, owners, shards, costs.gather, costs.state, absent)
    elif any(costs.gather) and "gather" in _costs_of(sections).settings:
        setting = _costs_of(sections).settings["gather"]
        message = "`gather` is given, and every worker has the whole state of the optimizer"
        hint = "write `optimizer { state = sharded }`, or remove it"
        report.error("conflict", message, setting.key.span, hint)
    if spec.expert_counts and not spec.is_free:
        check_room(max(spec.expert_counts), experts, spec, _span_of_experts(sections), sections, report)
    check_totals(spec, costs.span, report)
    return spec


def _span_of_experts(sections: Sections) -> Span:
    """Place that says how many experts there are."""
    section = _costs_of(sections)
    setting = section.settings.get("experts")
    return setting.value.span if setting else section.span


@dataclass(frozen=True, slots=True)
class _Placed:
    """A job cut into stages on a grid of workers."""

    costs: ChunkCosts
    pipelines: int
    microbatches: int
    capacity: Capacity
    """Of the workers of each stage, for activations."""
    cut: Cut
    """The layers of each stage; none in a job that gives whole stages."""
    layered: dict[str, Any]
    """The fields of a JobSpec that only a job in layers has."""
    overhead: int = 0


def _place(
    source: ChunkCosts | LayeredCosts | None,
    failures: int | None,
    state: StateRules,
    sections: Sections,
    shape: GivenShape,
    report: Mistakes,
) -> _Placed | None:
    """The job on its workers; None when the report says why not."""
    recut, grouping = read_recut(sections, report), read_grouping(sections, report)
    setting = capacity_setting(sections)
    if isinstance(source, ChunkCosts) or _has_profile_block(sections):
        refuse_layer_settings(sections, report)
    elif source:
        check_recut(sections, shape, recut, setting, report)
    split = read_split(sections, source, recut=recut is not False, report=report)
    memory_unit = source.memory_unit if source else memory_unit_of([setting] if setting else [])
    # Where the job leaves stages open, its capacity is that of every worker.
    is_one = shape.is_free and not (setting and isinstance(setting.value, Listing))
    capacity = read_capacity(setting, memory_unit, 1 if is_one else shape.stages, report)
    if source is None or capacity is None:
        return None
    if isinstance(source, ChunkCosts):
        if not (shape.pipelines and shape.microbatches):
            return None
        left = for_activations(capacity, source, setting, report)
        return _Placed(source, shape.pipelines, shape.microbatches, left, (), {})
    placed = _place_layers(source, capacity, recut is not False, failures, state, sections, shape, report)
    if placed is None:
        return None
    said = {} if split is None else {"split_ppm": split}
    # Workers of several stages would hold a chunk, and have to meet in its rounds.
    has_groups = grouping and not state.slots
    said |= {} if has_groups or recut is False else {"grouping": False}
    return replace(placed, layered=placed.layered | said)


def _place_layers(
    layers: LayeredCosts,
    capacity: Capacity,
    recut: bool,
    failures: int | None,
    state: StateRules,
    sections: Sections,
    shape: GivenShape,
    report: Mistakes,
) -> _Placed | None:
    smallest = _of_any_worker(capacity)
    net = None if smallest is None else max(0, smallest - layers.overhead)
    start = read_start(layers, net, failures, state.owners, sections, shape, report)
    if start is None:
        return None
    stages = len(start.cut)
    whole = capacity if len(capacity) == stages else capacity * stages
    shared = shares_of(start.costs.state, state.owners, start.pipelines)
    left = for_activations(whole, start.costs, capacity_setting(sections), report, layers.overhead, shared)
    layered: dict[str, Any] = {
        "cut": start.cut,
        "layer_costs": start.layer_costs,
        "redundancy": start.redundancy,
        "free_workers": start.free_workers,
    }
    # A model whose cut stays is a job of whole stages.
    keeps_cut = {} if "model" in sections else {"cut": start.cut, "redundancy": start.redundancy}
    fields = layered if recut else keeps_cut
    return _Placed(start.costs, start.pipelines, start.microbatches, left, start.cut, fields, layers.overhead)


def _with_ties(spec: JobSpec, ties: Ties, cut: Cut) -> JobSpec:
    """The job with layers that share parameters, and the time that their sum takes."""
    if not ties.tied:
        return spec
    chunks = replace(spec, cut=cut, tied=ties.tied).tied_chunks
    reduce = tuple(time + ties.reduce * (chunk in chunks) for chunk, time in enumerate(spec.reduce))
    tied = ties.tied if spec.cut else chunks
    return replace(spec, tied=tied, tied_reduce=ties.reduce if tied else 0, reduce=reduce)


def _has_profile_block(sections: Sections) -> bool:
    """True if the job gives whole stages, be it with mistakes."""
    return "profile" in sections and not sections["profile"].block.file


def _of_any_worker(capacity: Capacity) -> int | None:
    """Capacity of the smallest worker; None is unlimited."""
    return min((amount for amount in capacity if amount is not None), default=None)


def _costs_of(sections: Sections) -> Section:
    """The block that says what the job costs."""
    return next(sections[name] for name in _SOURCES if name in sections)


def _read_costs(
    job: Job, sections: Sections, shape: GivenShape, state: StateRules, folder: Path, report: Mistakes
) -> ChunkCosts | LayeredCosts | None:
    given = [sections[name] for name in _SOURCES if name in sections]
    if "device" in sections and "model" not in sections:
        message = "`device` is given, but no model to run on it"
        report.error("conflict", message, sections["device"].span, "add `model gpt { ... }` or remove it")
    for section in given[1:]:
        message = "a job has one of `profile`, `layers` and `model`, not several"
        report.error("conflict", message, section.span, "remove one of them")
    if "model" in sections:
        return read_model(sections["model"], sections, shape, state, report)
    if "layers" in sections:
        return read_layers_block(sections["layers"], capacity_setting(sections), shape, state.owners, report)
    profile = sections.get("profile")
    if profile is None:
        hint = 'write `profile { ... }`, `profile from "file.json"`, or `model gpt { ... }` and `device a100`'
        report.error(
            "missing", f"job {quote(job.name.text)} does not say what its stages cost", job.name.span, hint
        )
        return None
    if profile.block.file:
        return read_profile_file(profile.block.file, folder, shape, state, report)
    return read_profile_block(profile, capacity_setting(sections), shape.stages, report)


def _read_variation(
    sections: Sections, source: ChunkCosts | LayeredCosts | None, report: Mistakes
) -> Variation:
    """Variation of op times: as the block of the costs says, or as a profile has measured it."""
    measured = source.variation if isinstance(source, ChunkCosts | MeasuredLayers) else STEADY
    said: dict[str, int] = {}
    for name in _SOURCES:
        settings = sections[name].settings if name in sections else {}
        for key in ("spread", "jitter"):
            share = read_share(settings[key], report) if key in settings else None
            if share is not None:
                said[f"{key}_ppm"] = share.floor_of(10_000)
    return measured._replace(**said)


def _check_forms(job: Job, sections: Sections, report: Mistakes) -> None:
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


def read_solver(sections: Sections, report: Mistakes) -> SolverOptions | None:
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
    """Number of failures that a plan can be made for: every stage keeps one live worker.

    That holds without re-routing too: peers are renamed so that failures share pipelines.
    """
    return stages * (pipelines - 1)


def read_failures(sections: Sections, shape: GivenShape, report: Mistakes) -> int | None:
    """Read the number of workers that may fail; none unless the job says so."""
    section = sections.get("tolerate")
    setting = section.settings.get("failures") if section else None
    if setting is None:
        return 0
    share = isinstance(setting.value, Quantity) and setting.value.unit is not None
    if share:
        percent = read_share(setting, report)
        workers = shape.workers or (shape.stages or 0) * (shape.pipelines or 0)
        number = percent.floor_of(workers) // 100 if percent and workers else None
    else:
        number = read_whole(setting, report, 0, MOST_GPUS)
    if number is not None and shape.stages and shape.pipelines:
        _check_survivable(number, shape.stages, shape.pipelines, setting, report)
    return number


def _check_survivable(
    failures: int, stages: int, pipelines: int, setting: SyntaxSetting, report: Mistakes
) -> None:
    most = most_failures(stages, pipelines)
    if failures <= most:
        return
    size = f"{quantity(stages, 'stage')} x {quantity(pipelines, 'pipeline')}"
    message = f"{size} survive at most {quantity(most, 'failure')}, got {failures:,}"
    hint = "every stage needs one live worker: lower `failures` or raise `data`"
    report.error("too-many-failures", message, setting.value.span, hint, no_plan=True)


def check_totals(spec: JobSpec, span: Span, report: Mistakes) -> None:
    """Report a job whose iteration, run op after op by one worker, could not be counted."""
    units = spec.pipelines * spec.microbatches
    per_unit = (
        sum(spec.forward) + sum(spec.backward_input) + sum(spec.backward_weight) + 2 * sum(spec.transfer)
    )
    ticks = units * per_unit + sum(spec.reduce) + sum(spec.optimizer) + sum(spec.gather)
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
