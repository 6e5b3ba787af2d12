"""`recyclec show`: one plan of a bundle, as a picture or as data."""

from argparse import ArgumentParser, Namespace

from recycle_compiler.backends.torch_csv import TorchCsvError, torch_csv
from recycle_compiler.cli.bundles import schedule_of
from recycle_compiler.cli.options.plans import OWN, add_plan_arguments, pick_plan
from recycle_compiler.cli.options.views import FORMATS, add_view_arguments, deliver_view
from recycle_compiler.cli.pages import bundle_page
from recycle_compiler.viz.trace import planned_trace
from recycle_runtime.cli.output import DONE, Output, UserError, check_target


def add_arguments(parser: ArgumentParser) -> None:
    add_plan_arguments(parser)
    add_view_arguments(parser, (*FORMATS, "trace", "csv"))


def run(arguments: Namespace, output: Output) -> int:
    check_target(arguments.out, arguments.bundle)
    picked = pick_plan(arguments, output)
    streams = picked.streams
    if arguments.format == "html":
        page = bundle_page(picked, arguments.bundle, own_cut=arguments.cut == OWN)
        output.deliver(page, arguments.out)
    elif arguments.format == "trace":
        output.deliver(planned_trace(schedule_of(streams, arguments.bundle)), arguments.out)
    elif arguments.format == "csv":
        try:
            output.deliver(torch_csv(streams), arguments.out)
        except TorchCsvError as error:
            raise UserError(f"{arguments.bundle}: {error}") from None
    else:
        deliver_view(streams, arguments.bundle, arguments, output)
    return DONE
