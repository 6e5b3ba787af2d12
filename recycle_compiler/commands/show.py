"""`recyclec show`: one plan of a bundle, as a picture or as data."""

from argparse import Namespace

from recycle_compiler.commands.bundles import read_bundle
from recycle_compiler.commands.output import DONE, Output, check_target
from recycle_compiler.commands.pick import pick_plan
from recycle_compiler.commands.views import deliver_view


def run(arguments: Namespace, output: Output) -> int:
    check_target(arguments.out, arguments.bundle)
    bundle = read_bundle(arguments.bundle)
    program = pick_plan(bundle, arguments.bundle, arguments.failures, arguments.failed, output)
    deliver_view(program, arguments.bundle, arguments, output)
    return DONE
