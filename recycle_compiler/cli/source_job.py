"""The job as it starts, from its text in a bundle: for a file of nothing but plans under another cut.

Such a file has the job that a layout gives, with the costs of its stages. What the own cut takes, and what
other cuts would, needs the costs of layers, which the text of the job gives.
"""

from pathlib import Path

from recycle_compiler.cli.options.planning import start_of
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.groups import GroupedLayout, any_layout_of, job_of_groups
from recycle_compiler.ir.job import PER_CHUNK, JobSpec
from recycle_compiler.ir.layout import halved, job_of_layout
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.state import with_techniques
from recycle_runtime.cli.output import Output
from recycle_runtime.plan.bundle import Bundle

_OF_LAYERS = tuple(name for name in PER_CHUNK if name != "reduce")
"""Fields of a stage that come from its layers; a sum takes as long as there are workers for it."""


def source_job(bundle: Bundle, path: str, schedule: Schedule, output: Output) -> JobSpec | None:
    """The job under its own cut, with the techniques of the plan; None, and a word about it, if the text does
    not give it."""
    try:
        source = parse_job_text(bundle.job_source, str(Path(path).with_suffix(".job")))
    except CompileError as error:
        why = f"the text of its job cannot be read: {error.diagnostics[0].message}"
    else:
        job = with_techniques(start_of(source, output), schedule.job.techniques)
        if _is_of(job, schedule):
            return job
        why = "the text of its job gives other costs"
    output.say(f"{path}: this plan is not compared with other cuts: {why}")
    return None


def _is_of(job: JobSpec, schedule: Schedule) -> bool:
    """True if the plan is one of this job, under another cut."""
    planned = schedule.job
    layout = any_layout_of(planned, schedule.failed)
    assert layout is not None, "a plan under another cut is of a job in layers"
    try:
        variant = halved(job) if planned.parts == 2 else job
        is_grouped = isinstance(layout, GroupedLayout)
        derived = job_of_groups(variant, layout) if is_grouped else job_of_layout(variant, layout)
    except ValueError:
        return False
    units = derived.pipelines * derived.microbatches == planned.pipelines * planned.microbatches
    same = (getattr(derived, name) == getattr(planned, name) for name in ("unit", "tensor", *_OF_LAYERS))
    return units and all(same)
