"""`recyclec doctor`: versions, devices and limits of this machine, before a job and for bug reports."""

import subprocess
import sys
from argparse import Namespace

from recycle_compiler.version import __version__
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.doctor.findings import Finding, as_json, findings_table, from_json, package

_PACKAGES = ("lark", "numpy", "networkx", "pyomo", "highspy", "rich", "numba", "jinja2")
_PATIENCE_S = 120
"""Loading torch can take a minute from a cold network disk."""


def add_arguments(parser: Arguments) -> None:
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")


def run(arguments: Namespace, output: Output) -> int:
    missing = "planning needs it: `pip install recyclec` brings it"
    findings = [
        Finding("recyclec", __version__),
        *(package(name, missing) for name in _PACKAGES),
        *_runtime(),
    ]
    output.data(as_json(findings) if arguments.json else findings_table(findings))
    return DONE


def _runtime() -> list[Finding]:
    """Findings of the runtime, in a process of its own: the compiler never loads torch."""
    asked = [sys.executable, "-m", "recycle_runtime.cli", "doctor", "--json"]
    advice = "run `recycle-run doctor` to see more"
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_PATIENCE_S)
        return from_json(answer.stdout)
    except subprocess.TimeoutExpired:
        return [Finding("runtime", f"no answer within {_PATIENCE_S} s", advice)]
    except ValueError:
        return [Finding("runtime", "ended with an error", advice)]
