"""Syntax to a JobSpec: reads every block, whatever is wrong with the others."""

from pathlib import Path

from recycle_compiler.frontend.amounts import memory_unit_of
from recycle_compiler.frontend.capacity import capacity_setting, for_activations, read_capacity
from recycle_compiler.frontend.check import check_totals
from recycle_compiler.frontend.costs import Costs
from recycle_compiler.frontend.model_block import read_model
from recycle_compiler.frontend.names import Sections, read_names, report_missing
from recycle_compiler.frontend.options import read_failures, read_solver, read_techniques
from recycle_compiler.frontend.profile import read_profile_file
from recycle_compiler.frontend.profile_block import read_profile_block
from recycle_compiler.frontend.report import Report
from recycle_compiler.frontend.shape import Shape, read_shape
from recycle_compiler.frontend.syntax import Job
from recycle_compiler.frontend.wording import quote
from recycle_compiler.ir.job import JobSpec

_LONGEST_NAME = 100


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
