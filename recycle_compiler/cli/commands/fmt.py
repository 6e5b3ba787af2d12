"""`recyclec fmt`: rewrite a job file in canonical form; comments stay."""

from argparse import Namespace
from pathlib import Path

from recycle_compiler.frontend import format_job, read_source
from recycle_runtime.cli.output import DONE, INPUT_ERROR, STANDARD, Output
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.files import write_whole


def add_arguments(parser: Arguments) -> None:
    parser.add_argument("job", metavar="JOB", help="a job file; `-` reads stdin and writes stdout")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file would change")


def run(arguments: Namespace, output: Output) -> int:
    source = read_source(arguments.job)
    formatted = format_job(source.text, source.name)
    changes = formatted.encode("utf-8") != source.content
    if arguments.check:
        if changes:
            output.say(f"{source.name}: not in canonical form; `recyclec fmt {arguments.job}` rewrites it")
        return INPUT_ERROR if changes else DONE
    if arguments.job == STANDARD:
        output.data(formatted)
    elif changes:
        write_whole(Path(arguments.job), formatted.encode("utf-8"))
        output.written.append(arguments.job)
        output.say(f"{source.name}: rewritten")
    return DONE
