"""`recyclec verify`: every rule, from the file alone, with code the planner does not use."""

from argparse import Namespace

from recycle_compiler.cli.bundles import read_bundle
from recycle_compiler.cli.options.files import add_bundle_argument
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural, time_text, unit_name
from recycle_compiler.verifier.cuts import verify_cuts
from recycle_compiler.verifier.index import read_job, verify_index
from recycle_compiler.verifier.report import PlanReport
from recycle_compiler.verifier.verify import verify_plans
from recycle_runtime.cli.output import DONE, INPUT_ERROR, Output
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.recut import layout_text


def add_arguments(parser: Arguments) -> None:
    add_bundle_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    bundle = read_bundle(arguments.bundle)
    violations = [*verify_index(bundle), *verify_cuts(bundle)]
    output.data("".join(f"{violation}\n" for violation in violations))
    job = read_job(bundle)
    if isinstance(job, JobSpec):
        for report in verify_plans(bundle):
            violations += report.violations
            output.data(_lines(report, bundle, job))
    if violations:
        output.error(f"{arguments.bundle}: {plural(len(violations), 'violation')}")
        return INPUT_ERROR
    under = f", and {plural(len(bundle.recuts), 'other cut')}" if bundle.recuts else ""
    output.say(f"{arguments.bundle}: {plural(len(bundle.plans), 'plan')}{under}, every rule holds")
    output.say(f"{arguments.bundle}: content hash {bundle.content_hash}")
    return DONE


def _lines(report: PlanReport, bundle: Bundle, job: JobSpec) -> str:
    """One line for a plan that is right, one for each violation of one that is not."""
    if not report.passed:
        return "".join(f"{violation}\n" for violation in report.violations)
    period = "" if report.period is None else f", period {time_text(job, report.period)} {unit_name(job)}"
    did = f"{report.instructions} instructions{period}\n"
    if report.cut is None:
        failures = plural(len(bundle.plans[report.plan].failed), "failure")
        return f"plan {report.plan}: ok, {failures}, {did}"
    recut = bundle.recuts[report.cut]
    failed = recut.plans[report.plan].failed
    counts = [recut.pipelines - sum(at == stage for _, at in failed) for stage in range(recut.stages)]
    where = layout_text(recut.cut, counts, bundle.split(recut))
    return f"cut {report.cut}, plan {report.plan}: ok, {where}, {did}"
