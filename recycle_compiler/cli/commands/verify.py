"""`recyclec verify`: every rule, from the file alone, with code the planner does not use."""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from recycle_compiler.cli.bundles import read_bundle
from recycle_compiler.cli.options.files import add_bundle_argument
from recycle_compiler.diagnostics import CompileError
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.ir.bundled import layout_name
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.groups import any_layout_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural, time_text, unit_name
from recycle_compiler.verifier.cuts import verify_cuts
from recycle_compiler.verifier.index import verify_index, workable_job
from recycle_compiler.verifier.report import PlanReport, VerifierRule, Violation
from recycle_compiler.verifier.verify import verify_plans
from recycle_runtime.cli.output import DONE, INPUT_ERROR, Output
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.plan.bundle import Bundle


def add_arguments(parser: Arguments) -> None:
    add_bundle_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    bundle = read_bundle(arguments.bundle)
    violations = [*verify_index(bundle), *_verify_source(bundle, arguments.bundle, output)]
    violations += verify_cuts(bundle)
    output.data("".join(f"{violation}\n" for violation in violations))
    job = workable_job(bundle)
    if isinstance(job, JobSpec):
        for report in verify_plans(bundle):
            violations += report.violations
            output.data(_lines(report, bundle, job))
    if violations or isinstance(job, str):
        output.error(f"{arguments.bundle}: {plural(len(violations), 'violation')}")
        return INPUT_ERROR
    under = f", and {plural(len(bundle.recuts), 'other cut')}" if bundle.recuts else ""
    output.say(f"{arguments.bundle}: {_checked(bundle, job)}{under}, every rule holds")
    if missing := _missing(bundle, job):
        output.say(
            f"{arguments.bundle}: no plan for {_counted(missing, 'failure')}; the job asks for plans for "
            f"{_counted(range(job.failures + 1), 'failure')}, which `recyclec compile` makes"
        )
    output.say(f"{arguments.bundle}: content hash {bundle.content_hash}")
    return DONE


_SAME = ("tensor", "stages", "pipelines", "microbatches", "chunks", "layers", "owners")
"""Fields that a job and its source have in common; times may come from a profile that has changed since."""
_SAME_MODEL = ("tensor", "layers", "units", "owners")
"""The same, where the grid is another one than the source gives: of a free job, and under a layout."""


def _verify_source(bundle: Bundle, path: str, output: Output) -> Iterator[Violation]:
    """Plans on demand are made from the source, so it has to be that of the other plans."""
    job = workable_job(bundle)
    if isinstance(job, str) or not bundle.job_source.strip():
        return
    try:
        source = parse_job_text(bundle.job_source, str(Path(path).with_suffix(".job")))
    except CompileError as error:
        first = error.diagnostics[0]
        if first.code.startswith("profile"):
            output.say(f"{path}: its source is not compared with its job: {first.message}")
        else:
            yield _source_violation(f"the source of the job cannot be read: {first.message}")
        return
    is_other_grid = source.is_free or job.is_recut
    for name in _SAME_MODEL if is_other_grid else _SAME:
        of_job, of_source = _shape(job)[name], _shape(source)[name]
        if of_job != of_source:
            yield _source_violation(f"the job has {of_job} {name}, its source {of_source}")


def _shape(job: JobSpec) -> dict[str, int]:
    return {
        "tensor": job.tensor,
        "owners": job.owners,
        "stages": job.stages,
        "pipelines": job.pipelines,
        "microbatches": job.microbatches,
        "chunks": job.chunks,
        "layers": sum(job.cut),
        "units": job.pipelines * job.microbatches // job.parts,
    }


def _source_violation(message: str) -> Violation:
    return Violation(VerifierRule.INDEX_SOURCE, None, None, None, message)


def _checked(bundle: Bundle, job: JobSpec) -> str:
    """The plans, and the numbers of failures that they are for, or of workers where they are of a layout."""
    plans, counts = plural(len(bundle.plans), "plan"), {len(plan.failed) for plan in bundle.plans}
    if not counts:
        return plans
    if job.is_recut:
        return f"{plans} for {_counted((job.workers - count for count in counts), 'worker')}"
    return f"{plans} for {_counted((count - job.vacant for count in counts), 'failure')}"


def _missing(bundle: Bundle, job: JobSpec) -> list[int]:
    """Numbers of failures that the job asks for and no plan is for; a layout is for its own workers alone."""
    if job.is_recut:
        return []
    found = {len(plan.failed) for plan in bundle.plans}
    expected = range(job.vacant, job.failures + 1)
    return [failures - job.vacant for failures in expected if failures not in found]


def _counted(counts: Iterable[int], noun: str) -> str:
    """`0 to 2 failures`, `0 and 2 to 5 failures`, `1 failure`."""
    ordered = sorted(counts)
    # In a run of numbers without a gap, a number and its place in the list are equally far apart.
    runs = [[each for _, each in run] for _, run in groupby(enumerate(ordered), lambda at: at[1] - at[0])]
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return f"{listed} {noun}{'' if ordered == [1] else 's'}"


def _lines(report: PlanReport, bundle: Bundle, job: JobSpec) -> str:
    """One line for a plan that is right, one for each violation of one that is not."""
    if not report.passed:
        return "".join(f"{violation}\n" for violation in report.violations)
    period = "" if report.period is None else f", period {time_text(job, report.period)} {unit_name(job)}"
    did = f"{report.instructions} instructions{period}\n"
    if report.cut is None:
        return f"plan {report.plan}: ok, {_for_whom(bundle, report.plan, job)}, {did}"
    recut = bundle.recuts[report.cut]
    where = layout_name(bundle, recut, report.plan)
    return f"cut {report.cut}, plan {report.plan}: ok, {where}, {did}"


def _for_whom(bundle: Bundle, plan: int, job: JobSpec) -> str:
    """The failures that a plan is for; its workers, where a layout gives each stage as many as it likes."""
    failed = failure_set(bundle.plans[plan].failed)
    layout = any_layout_of(job, failed) if job.is_recut else None
    if layout is None:
        return plural(len(failed), "failure")
    halves = " in halves" if job.parts == 2 else ""
    return f"{plural(sum(layout.workers), 'worker')} as {layout}{halves}"
