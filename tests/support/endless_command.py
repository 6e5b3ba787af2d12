"""A command whose processes never end by themselves, for tests that end them."""

import os
import signal
import sys
from argparse import Namespace
from pathlib import Path

from recycle_compiler.cli import main as cli
from recycle_compiler.cli.commands import check
from recycle_compiler.planner.worker_processes import running
from recycle_runtime.cli.output import Output


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
    check.run = run_endlessly
    # Whoever runs the tests may ignore them, in the background or under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    return cli.main(["check", str(target)])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
