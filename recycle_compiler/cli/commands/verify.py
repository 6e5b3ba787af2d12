"""`recyclec verify`: every rule, from the file alone, with code the planner does not use."""

from argparse import Namespace

from recycle_compiler.cli.bundles import read_bundle
from recycle_compiler.cli.options.files import add_bundle_argument
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural, time_text, unit_name
from recycle_compiler.verifier.index import read_job, verify_index
from recycle_compiler.verifier.report import PlanReport
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.cli.output import DONE, INPUT_ERROR, Output
from recycle_runtime.cli.parser import Arguments


def add_arguments(parser: Arguments) -> None:
    add_bundle_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    bundle = read_bundle(arguments.bundle)
    violations = list(verify_index(bundle))
    output.data("".join(f"{violation}\n" for violation in violations))
    job = read_job(bundle)
    if isinstance(job, JobSpec):
        for index, plan in enumerate(bundle.plans):
            report = verify_plan(bundle, index)
            violations += report.violations
            output.data(_lines(report, len(plan.failed), job))
    if violations:
        output.error(f"{arguments.bundle}: {plural(len(violations), 'violation')}")
        return INPUT_ERROR
    output.say(f"{arguments.bundle}: {plural(len(bundle.plans), 'plan')}, every rule holds")
    output.say(f"{arguments.bundle}: content hash {bundle.content_hash}")
    return DONE


def _lines(report: PlanReport, failures: int, job: JobSpec) -> str:
    """One line for a plan that is right, one for each violation of one that is not."""
    if not report.passed:
        return "".join(f"{violation}\n" for violation in report.violations)
    period = "" if report.period is None else f", period {time_text(job, report.period)} {unit_name(job)}"
    return (
        f"plan {report.plan}: ok, {plural(failures, 'failure')}, {report.instructions} instructions{period}\n"
    )
