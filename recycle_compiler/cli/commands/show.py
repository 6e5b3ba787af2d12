"""`recyclec show`: one plan of a bundle, as a picture or as data."""

from argparse import Namespace

from recycle_compiler.backends.torch_csv import TorchCsvError, torch_csv
from recycle_compiler.cli.bundles import read_bundle, schedule_of
from recycle_compiler.cli.output import DONE, Output, UserError, check_target
from recycle_compiler.cli.pick import pick_plan
from recycle_compiler.cli.views import deliver_view
from recycle_compiler.viz.planned_trace import planned_trace


def run(arguments: Namespace, output: Output) -> int:
    check_target(arguments.out, arguments.bundle)
    bundle = read_bundle(arguments.bundle)
    program = pick_plan(bundle, arguments.bundle, arguments.failures, arguments.failed, output)
    if arguments.format == "trace":
        output.deliver(planned_trace(schedule_of(program, arguments.bundle)), arguments.out)
    elif arguments.format == "csv":
        try:
            output.deliver(torch_csv(program), arguments.out)
        except TorchCsvError as error:
            raise UserError(f"{arguments.bundle}: {error}") from None
    else:
        deliver_view(program, arguments.bundle, arguments, output)
    return DONE
