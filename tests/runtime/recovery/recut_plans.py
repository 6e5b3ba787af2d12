"""Bundles with plans of several cuts, made by hand, and what a run with them must equal."""

from dataclasses import replace
from pathlib import Path

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.ir.failure import normal_form
from recycle_compiler.ir.groups import GroupedLayout, job_of_groups, parse_any_layout
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.layout import halved, job_of_layout
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from tests.runtime.recovery.watched import PROGRAMS, Outcome, check_rows, check_saved, saved_models
from tests.runtime.training.alone import Alone, train_alone
from tests.support.layers import layer_costs, layered_job

LAYERED = str(PROGRAMS / "layered.py")
LAYERS = 6
IN_HALVES = " in halves"


def three_by_two(*, barrier: bool = False, owners: int = 0) -> JobSpec:
    """Three pipelines of two stages, three layers each."""
    job = layered_job(layer_costs((1000,) * LAYERS), (3, 3), 3, 4, owners=owners)
    return replace(job, techniques=replace(job.techniques, stagger=not barrier))


UP_TO_TWO = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]


def write_bundle(
    path: Path,
    job: JobSpec,
    recuts: dict[str, list[tuple[int, ...]]],
    counts: list[tuple[int, ...]] | None = None,
    source: str = "",
) -> str:
    """With plans of the job's own cut for these failures on each stage, and others for each layout.

    Plans for a layout are for so many failures on each stage, beyond the cells that it leaves out; a layout
    may be `in halves`. Without the text of the job no plans can be made on demand.
    """
    own = [plan_failed(job, normal_form(failed, job.pipelines)) for failed in counts or UP_TO_TWO]
    others: list[list[Streams]] = []
    for text, failures in recuts.items():
        layout = parse_any_layout(text.removesuffix(IN_HALVES))
        whole = halved(job) if text.endswith(IN_HALVES) else job
        is_grouped = isinstance(layout, GroupedLayout)
        derived = job_of_groups(whole, layout) if is_grouped else job_of_layout(whole, layout)
        absent = [derived.pipelines - workers for workers in layout.workers]
        plans: list[Streams] = []
        for more in [(0,) * layout.stages, *failures]:
            failed = tuple(map(sum, zip(absent, more, strict=True)))
            plans.append(plan_failed(derived, normal_form(failed, derived.pipelines)))
        others.append(plans)
    path.write_bytes(bundle_bytes(source=source, plans=own, recuts=others))
    return str(path)


def check_layers(
    folder: Path, outcome: Outcome, program: str, per_step: int, steps: int, first: int = 0
) -> Alone:
    """Every step once, with its loss; every layer that any worker holds at the end is as it should be."""
    alone = train_alone(program, 1, per_step, steps, cut=(LAYERS,))
    check_rows(folder, outcome, alone.losses, first)
    saved = saved_models(folder / "saved")
    assert len(saved) >= outcome.rows[-1].live
    for path, state in saved.items():
        check_saved(path, state, alone.states[0], 1e-12)
    assert {name for state in saved.values() for name in state} == alone.states[0].keys()
    return alone
