"""Options: files to read and to write. Imports nothing heavy."""

from recycle_runtime.cli.parser import Arguments


def add_job_argument(parser: Arguments) -> None:
    """The job to read."""
    parser.add_argument("job", metavar="JOB", help="a job file; `-` reads stdin")


def add_bundle_argument(parser: Arguments) -> None:
    """The bundle to read."""
    parser.add_argument("bundle", metavar="PLAN", help="a bundle, as `recyclec compile` writes it")


def add_output_argument(parser: Arguments, note: str = "") -> None:
    """Add the option for the output file."""
    parser.add_argument(
        "-o", "--output", dest="out", metavar="FILE", help=f"write to FILE instead of stdout{note}"
    )
