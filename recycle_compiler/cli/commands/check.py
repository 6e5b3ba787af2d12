"""`recyclec check`: read a job and report every mistake in it."""

from argparse import Namespace

from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.units import plural
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments


def add_arguments(parser: Arguments) -> None:
    add_job_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    loaded = load_job(arguments.job)
    job = loaded.spec
    shape = (
        plural(job.stages, "stage"),
        plural(job.pipelines, "pipeline"),
        plural(job.microbatches, "micro-batch"),
    )
    tolerated = plural(job.failures, "failure")
    output.say(f"{loaded.name}: ok, job {job.name} with {' x '.join(shape)}, {tolerated} tolerated")
    return DONE
