"""`recyclec fmt`: rewrite a job file in canonical form; comments stay."""

import sys
from argparse import Namespace
from pathlib import Path

from recycle_compiler.commands.output import DONE, INPUT_ERROR, Output, UserError
from recycle_compiler.files import write_whole
from recycle_compiler.frontend import format_job, read_source


def run(arguments: Namespace, output: Output) -> int:
    name = "<stdin>" if arguments.job == "-" else arguments.job
    source, content = _from_stdin() if arguments.job == "-" else _from_file(arguments.job)
    formatted = format_job(source, name)
    changes = formatted.encode("utf-8") != content
    if arguments.check:
        if changes:
            output.say(f"{name}: not in canonical form; `recyclec fmt {arguments.job}` rewrites it")
        return INPUT_ERROR if changes else DONE
    if arguments.job == "-":
        output.data(formatted)
    elif changes:
        write_whole(Path(arguments.job), formatted.encode("utf-8"))
        output.written.append(arguments.job)
        output.say(f"{name}: rewritten")
    return DONE


def _from_file(path: str) -> tuple[str, bytes]:
    """The text to format, and the bytes that the result is compared with."""
    return read_source(path), Path(path).read_bytes()


def _from_stdin() -> tuple[str, bytes]:
    content = sys.stdin.buffer.read()
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n"), content
    except UnicodeDecodeError as error:
        raise UserError(f"<stdin>: not UTF-8 text (byte {error.start})") from error
