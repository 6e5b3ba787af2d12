"""`recycle-run doctor`: this machine, its torch and its devices."""

from argparse import Namespace

from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments


def add_arguments(parser: Arguments) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def run(arguments: Namespace, output: Output) -> int:
    from recycle_runtime.doctor.devices import devices
    from recycle_runtime.doctor.findings import as_json, findings_table, package
    from recycle_runtime.doctor.machine import machine
    from recycle_runtime.doctor.torch_build import torch_build

    packages = [
        package("msgspec", "running a job needs it: `pip install recyclec` brings it"),
        package("safetensors", "reading weights needs it: `pip install 'recyclec[runtime]'`"),
    ]
    findings = [*machine(), *devices(), *packages, *torch_build()]
    output.data(as_json(findings) if arguments.json else findings_table(findings))
    return DONE
