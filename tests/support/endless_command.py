"""A command whose processes never end by themselves, for tests that end them."""

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

from recycle_compiler.cli import main as cli
from recycle_compiler.cli.output import Output
from recycle_compiler.planner.worker_processes import running


def wait_in_worker(number: int) -> int:
    """Say which process this is, then wait for a signal that ends it."""
    os.write(1, f"{os.getpid()}\n".encode())
    while True:
        signal.pause()


def run_endlessly(arguments: Namespace, output: Output) -> int:
    with running(2) as run:
        list(run(wait_in_worker, range(2)))
    output.deliver("never", arguments.job)
    return 0


def main(target: Path) -> int:
    """`recyclec check TARGET`, with a command in its place that would write the target in the end."""
    command = ModuleType("command")
    command.__dict__["run"] = run_endlessly

    def import_module(name: str) -> ModuleType:
        return command

    cli.__dict__["import_module"] = import_module
    # Whoever runs the tests may ignore them, in the background or under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return cli.main(["check", str(target)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
