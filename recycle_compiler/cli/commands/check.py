"""`recyclec check`: read a job and report every mistake in it."""

from argparse import Namespace

from recycle_compiler.cli.options.files import add_job_argument
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.units import plural
from recycle_compiler.viz.memory_table import memory_lines
from recycle_runtime.cli.output import DONE, Output
from recycle_runtime.cli.parser import Arguments


def add_arguments(parser: Arguments) -> None:
    add_job_argument(parser)


def run(arguments: Namespace, output: Output) -> int:
    loaded = load_job(arguments.job)
    job = loaded.spec
    said = [_shape(job), f"{plural(job.failures, 'failure')} tolerated"]
    if job.layer_costs is None:
        said.append("stages that cannot be re-cut")
    else:
        layers, workers = plural(job.layer_costs.count, "layer"), plural(job.redundancy, "worker")
        said.append(f"{layers} that may be re-cut, each on {workers} or more")
    if job.owners:
        lost = ", which are lost with it" if job.owners == 1 else ""
        said.append(f"optimizer state in shards of {plural(job.owners, 'owner')}{lost}")
    output.say(f"{loaded.name}: ok, job {job.name} with {', '.join(said)}")
    for line in memory_lines(job):
        output.words(f"{line}\n")
    return DONE


def _shape(job: JobSpec) -> str:
    if job.is_free:
        microbatches = plural(job.pipelines * job.microbatches, "micro-batch")
        return f"{plural(job.free_workers, 'worker')} for the compiler to place, {microbatches}"
    sizes = ((job.stages, "stage"), (job.pipelines, "pipeline"), (job.microbatches, "micro-batch"))
    return " x ".join(plural(size, noun) for size, noun in sizes)
