"""`recyclec plan`: on demand, for exactly these failed workers, not normalized across stages."""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.commands.output import DONE, Output
from recycle_compiler.commands.pick import check_workers
from recycle_compiler.commands.planning import planning, with_techniques
from recycle_compiler.commands.views import deliver_view
from recycle_compiler.compiler import plan_failed
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failure_set


def run(arguments: Namespace, output: Output) -> int:
    loaded = load_job(arguments.job)
    job = with_techniques(loaded.spec, arguments.techniques)
    failed = failure_set(arguments.failed)
    check_workers(failed, job.pipelines, job.stages)
    with planning(job):
        program = plan_failed(job, failed)
    if arguments.out and arguments.out.endswith(".plan"):
        write_bundle(Path(arguments.out), source=loaded.source, programs=[program])
        output.written.append(arguments.out)
        output.say(f"wrote {arguments.out}")
    else:
        deliver_view(program, arguments.job, arguments, output)
    return DONE
