"""`recyclec explain`: why a plan takes as long as it does, as text or as JSON."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace

from recycle_compiler.analysis.explain.cuts import CutFacts, cut_facts
from recycle_compiler.analysis.explain.document import explanation_document
from recycle_compiler.analysis.explain.groups import GroupFacts, group_facts
from recycle_compiler.analysis.explain.report import explain
from recycle_compiler.analysis.explain.spread import spread_cost
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.analysis.explain.timeline import ApartError
from recycle_compiler.cli.bundles import read_bundle_job, schedule_of
from recycle_compiler.cli.options.plans import Picked, add_plan_arguments, pick_plan
from recycle_compiler.cli.source_job import source_job
from recycle_compiler.cli.values import one_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.schedule import Schedule, measured
from recycle_runtime.cli.output import DONE, Output, UserError

WHAT_IF = ("plans", "bounds", "none")


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the same facts as JSON")
    parser.add_argument(
        "--what-if",
        type=one_of(WHAT_IF),
        metavar="|".join(WHAT_IF),
        help="estimate what changes would bring: plan each, compare bounds only, or skip it "
        "(default: plans; bounds for large plans)",
    )


def run(arguments: Namespace, output: Output) -> int:
    picked = pick_plan(arguments, output)
    schedule = schedule_of(picked.streams, arguments.bundle)
    if measured(schedule) != (schedule.claims.makespan, schedule.claims.period):
        raise UserError(
            f"{arguments.bundle}: the plan does not take as long as it claims; `recyclec verify` says more"
        )
    if not (schedule.job.has_chunk_per_stage or schedule.job.groups):
        raise UserError(
            f"{arguments.bundle}: plans are explained where every worker holds one chunk, and this one has "
            f"{schedule.job.chunks} chunks on {schedule.job.stages} stages"
        )
    own, facts = _own_job_and_facts(picked, schedule, arguments.bundle, output)
    try:
        explanation = explain(schedule, arguments.what_if, facts, own)
    except ApartError as error:
        raise UserError(f"{arguments.bundle}: the plan cannot be explained: {error}") from None
    explanation = replace(explanation, spread=spread_cost(picked.streams))
    text = explanation_document(explanation) if arguments.json else explanation_text(explanation)
    output.data(text)
    return DONE


def _own_job_and_facts(
    picked: Picked, schedule: Schedule, path: str, output: Output
) -> tuple[JobSpec | None, CutFacts | GroupFacts | None]:
    """The job as it starts, and why its layers are cut as they are in this plan; as far as the file says."""
    bundle, failures = picked.bundle, picked.failures
    own: JobSpec | None = read_bundle_job(bundle, path)
    if own.is_recut:
        # Nothing but plans under another cut.
        bundle, own = None, source_job(picked.bundle, path, schedule, output)
    if own is None:
        return None, None
    if bundle is None:
        failures = own.workers - (schedule.job.workers - len(schedule.failed))
    return own, (group_facts if schedule.job.groups else cut_facts)(bundle, own, schedule, failures)
