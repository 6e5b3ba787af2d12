"""`recyclec plan`: on demand, for exactly these failed workers, not normalized across stages."""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.commands.output import DONE, STANDARD, USAGE, Output, UserError
from recycle_compiler.commands.pick import check_survivors, check_workers
from recycle_compiler.commands.planning import load_for, planning, with_techniques
from recycle_compiler.commands.views import deliver_view
from recycle_compiler.compiler import plan_failed
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.viz.units import percent


def run(arguments: Namespace, output: Output) -> int:
    out: str = arguments.out or STANDARD
    into_bundle = out.endswith(".plan")
    if into_bundle and arguments.format:
        raise UserError(
            f"{out} would be a bundle, which has no format: leave out --format {arguments.format}, "
            "or choose a name that does not end in .plan",
            USAGE,
        )
    loaded = load_for(arguments.job, out)
    job = with_techniques(loaded.spec, arguments.techniques)
    failed = failure_set(arguments.failed)
    check_workers(failed, job.pipelines, job.stages)
    check_survivors(failed, job)
    with planning(job):
        program = plan_failed(job, failed)
    claims = program.claims
    if claims.cut_short:
        output.say(
            f"the time limit cut the search short; the plan is at most {percent(claims.gap)} above optimal"
        )
    if into_bundle:
        write_bundle(Path(out), source=loaded.source, programs=[program])
        output.written.append(out)
        output.say(f"wrote {out}")
    else:
        deliver_view(program, loaded.name, arguments, output)
    return DONE
