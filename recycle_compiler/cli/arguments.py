"""What may be typed after `recyclec`. Imports nothing heavy."""

import argparse
import os
from collections.abc import Sequence

from recycle_compiler import __version__
from recycle_compiler.cli.argument_values import (
    TECHNIQUES,
    count,
    one_of,
    positive,
    slow_workers,
    technique_names,
    workers,
)
from recycle_compiler.cli.simulate_arguments import add_simulate_arguments

FORMATS = ("grid", "json", "asm", "schedule")
SHOW_FORMATS = (*FORMATS, "trace", "csv")
WHAT_IF = ("plans", "bounds", "none")
SYSTEMS = ("slurm", "kubernetes")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options; a usage error exits with 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command == "plan" and arguments.failed is None and not arguments.slow:
        parser.error("the following arguments are required: --failed or --slow")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="recyclec",
        description="Plans pipeline-parallel training that goes on when workers fail.",
        parents=[_common()],
    )
    parser.set_defaults(quiet=False, no_color=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, does: str, more: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=does, description=f"{does[0].upper()}{does[1:]}.{more}", parents=[_common()]
        )

    _compile(
        command("compile", "plan for every number of failures up to the job's tolerance, into one bundle")
    )
    _check(command("check", "check a job file, plan nothing"))
    _fmt(command("fmt", "rewrite a job file in canonical form"))
    _show(command("show", "show one plan of a bundle"))
    _explain(command("explain", "say why a plan takes as long as it does, and what would make it faster"))
    _plan(command("plan", "plan for exactly these failed workers, and for slow ones"))
    _retime(command("retime", "say how long a step of a plan takes when ops take the times of another job"))
    _diff(
        command(
            "diff",
            "say what changed between two bundles or two schedule texts, exit 1 if anything did; "
            "or where the time of a run went against its plan, if B is its trace",
            " A file that cannot be read is exit 1 too: stderr then says why, and stdout stays empty. "
            "The comparison with a trace (as `recycle-run local --trace` writes it) is a report: exit 0, "
            "however much the run differs.",
        )
    )
    _verify(command("verify", "check a bundle against every rule, from the file alone"))
    add_simulate_arguments(
        command(
            "simulate",
            "say what throughput a job would have had under a trace of failures, with us and with others",
            " A trace is a file or words that one is made from: `every 30m`, `every 30m repair 2h`, "
            "`poisson mtbf=1000h repair=4h`, `none`.",
        )
    )
    _launch(command("launch", "write what starts a job on a cluster: a batch script or a manifest"))
    _reproduce(command("reproduce", "run again what a crash of recyclec has left behind"))
    return parser


def _common() -> argparse.ArgumentParser:
    """Options that work before and after the command; SUPPRESS lets the one given last stand."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--quiet", action="store_true", default=argparse.SUPPRESS, help="no words on stderr but errors"
    )
    common.add_argument(
        "--no-color",
        action="store_true",
        default=argparse.SUPPRESS,
        help="no colour; NO_COLOR=1 does the same",
    )
    common.add_argument("--version", action="version", version=f"recyclec {__version__}")
    return common


def _compile(parser: argparse.ArgumentParser) -> None:
    _job(parser)
    parser.add_argument(
        "-o", dest="out", metavar="PLAN", help="the bundle to write; needed unless --json is given"
    )
    parser.add_argument(
        "--failures", type=count, metavar="N", help="plan for 0..N failures (default: the job's)"
    )
    _techniques(parser)
    parser.add_argument(
        "--jobs",
        type=positive,
        metavar="N",
        default=os.cpu_count() or 1,
        help="processes (default: one per core)",
    )
    parser.add_argument("--json", action="store_true", help="the table as JSON on stdout")
    parser.add_argument("--dump-dir", metavar="DIR", help="write the IR after each pass into numbered files")
    parser.add_argument(
        "--print-after-change", action="store_true", help="print the IR after each pass that changed it"
    )


def _job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="a job file; `-` reads stdin")


def _check(parser: argparse.ArgumentParser) -> None:
    _job(parser)


def _fmt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="`-` reads stdin and writes stdout")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file would change")


def _show(parser: argparse.ArgumentParser) -> None:
    _one_plan(parser)
    _view(parser, SHOW_FORMATS)


def _explain(parser: argparse.ArgumentParser) -> None:
    _one_plan(parser)
    parser.add_argument("--json", action="store_true", help="the same facts as JSON")
    parser.add_argument(
        "--what-if",
        type=one_of(WHAT_IF),
        metavar="|".join(WHAT_IF),
        help="what changes would bring: plan each, compare bounds only, or leave it out "
        "(default: plans, for large plans bounds)",
    )


def _one_plan(parser: argparse.ArgumentParser) -> None:
    """A bundle, and which of its plans."""
    parser.add_argument("bundle", metavar="PLAN")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--failures", type=count, metavar="N", help="the plan for this many failures (default: 0)"
    )
    which.add_argument(
        "--failed", type=workers, metavar="P:S,P:S", help="the plan for these workers, pipeline:stage"
    )


def _plan(parser: argparse.ArgumentParser) -> None:
    _job(parser)
    parser.add_argument(
        "--failed",
        type=workers,
        metavar="P:S,P:S",
        help="the workers that are gone, pipeline:stage; needed unless --slow is given",
    )
    _slow(parser, "workers that take X times as long for all that they compute, and should have less of it")
    _techniques(parser)
    _view(parser, FORMATS, " (FILE.plan: a bundle of this one plan)")


def _retime(parser: argparse.ArgumentParser) -> None:
    _one_plan(parser)
    parser.add_argument(
        "--times", required=True, metavar="JOB", help="a job of the same shape, whose profile counts"
    )
    _slow(parser, "workers that take X times as long for all that they compute")
    parser.add_argument("--json", action="store_true", help="the same as JSON, in ticks")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="a bundle or the text of a schedule")
    parser.add_argument("after", metavar="B", help="the same, or the trace of a run of A")
    parser.add_argument("--json", action="store_true", help="the differences as JSON on stdout")
    parser.add_argument(
        "--step",
        type=count,
        metavar="N",
        help="the step of the trace to take apart (default: the median one, the first left out as warm-up)",
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="PLAN")


def _launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", type=one_of(SYSTEMS), metavar="|".join(SYSTEMS))
    parser.add_argument("bundle", metavar="PLAN", help="the bundle, as the nodes see it too")
    parser.add_argument("--program", required=True, metavar="FILE", help="the Python file to train")
    parser.add_argument("--steps", required=True, type=positive, metavar="N", help="how many steps to train")
    parser.add_argument("--nodes", type=positive, metavar="N", help="(default: as few as will do)")
    parser.add_argument(
        "--workers-per-node",
        type=positive,
        default=8,
        metavar="N",
        help="worker processes per node (default: 8)",
    )
    parser.add_argument("--device", type=one_of(("cuda", "cpu")), default="cuda", metavar="cuda|cpu")
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="keep checkpoints there, and go on from the newest one"
    )
    parser.add_argument("--name", metavar="NAME", help="of the job on the cluster (default: the job's)")
    parser.add_argument("--image", metavar="IMAGE", help="for kubernetes (default: recycle:latest)")
    parser.add_argument("-o", dest="out", metavar="FILE", help="write there instead of stdout")


def _reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE")


def _slow(parser: argparse.ArgumentParser, does: str) -> None:
    parser.add_argument("--slow", type=slow_workers, default=(), metavar="P:S=X,P:S=X", help=does)


def _view(parser: argparse.ArgumentParser, formats: Sequence[str], file_note: str = "") -> None:
    parser.add_argument("--format", type=one_of(formats), metavar="|".join(formats), help="(default: grid)")
    parser.add_argument("-o", dest="out", metavar="FILE", help=f"write there instead of stdout{file_note}")
    parser.add_argument(
        "--width",
        type=positive,
        metavar="N",
        help="columns of a grid (default: as wide as the terminal; 180 in a file or a pipe)",
    )


def _techniques(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--techniques",
        type=technique_names,
        metavar="LIST",
        help=f"any of {','.join(TECHNIQUES)}, or none (default: the job's)",
    )
