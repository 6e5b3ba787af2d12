"""`recyclec explain`: why a plan takes as long as it does, in words or as JSON."""

from argparse import Namespace

from recycle_compiler.analysis.explain.document import explanation_document
from recycle_compiler.analysis.explain.report import explain
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.cli.bundles import read_bundle, schedule_of
from recycle_compiler.cli.output import DONE, Output, UserError
from recycle_compiler.cli.pick import pick_plan
from recycle_compiler.ir.schedule import measured


def run(arguments: Namespace, output: Output) -> int:
    bundle = read_bundle(arguments.bundle)
    program = pick_plan(bundle, arguments.bundle, arguments.failures, arguments.failed, output)
    schedule = schedule_of(program, arguments.bundle)
    if measured(schedule) != (schedule.claims.makespan, schedule.claims.period):
        raise UserError(
            f"{arguments.bundle}: the plan does not take as long as it claims; `recyclec verify` says more"
        )
    explanation = explain(schedule, arguments.what_if)
    text = explanation_document(explanation) if arguments.json else explanation_text(explanation)
    output.data(text)
    return DONE
