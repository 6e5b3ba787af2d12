"""From a job file, or its text, to a JobSpec; the front door of the job language."""

import re
from dataclasses import dataclass
from pathlib import Path

from recycle_compiler.diagnostics import CompileError, Diagnostic, Span
from recycle_compiler.frontend.check import read_names, report_nested
from recycle_compiler.frontend.diagnostics import Mistakes
from recycle_compiler.frontend.parse import parse_syntax
from recycle_compiler.frontend.read_file import ReadError, decode_text, read_bytes
from recycle_compiler.frontend.resolve import resolve
from recycle_compiler.frontend.syntax import Block, Job
from recycle_compiler.ir.job import JobSpec

MOST_BYTES = 1 << 20
_MOST_WORDS = 100_000
"""Limit on words and signs, read in a second or two; a job of a thousand stages has some ten thousand."""
_COMMENT = re.compile(r"#[^\n]*")
_WORD = re.compile(r"[\w.-]+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Source:
    """A job file as it was read."""

    name: str
    text: str
    content: bytes
    """Before line ends and a byte order mark were put in order."""


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and where it came from."""

    spec: JobSpec
    source: str
    name: str
    """The path, or what stdin is called in messages."""


def load_job(path: str | Path) -> LoadedJob:
    """Read and check a job file, `-` for stdin; raises CompileError with everything that is wrong."""
    source = read_source(path)
    return LoadedJob(parse_job_text(source.text, source.name), source.text, source.name)


def read_source(path: str | Path) -> Source:
    """The text of a job file; raises CompileError when it is no text, too large or not there."""
    from_stdin = str(path) == "-"
    name = "<stdin>" if from_stdin else str(path)
    try:
        content = read_bytes(None if from_stdin else Path(path), MOST_BYTES)
        return Source(name, decode_text(content), content)
    except ReadError as error:
        hint = "a job file is text of a few lines" if error.code != "unreadable" else None
        raise CompileError([Diagnostic(error.code, f"the file {error}", None, hint)], "", name) from None


def parse_job_text(source: str, file_name: str) -> JobSpec:
    """Check the text of a job; a profile it names is looked for next to `file_name`."""
    report = Mistakes(source, file_name)
    job = _parse(source, report)
    if job and not report.diagnostics:
        spec = resolve(job, Path(file_name).parent, report)
        report.raise_if_any()
        if spec is None:
            raise AssertionError("a job without errors was not resolved")
        return spec
    # Values around a hole mislead, but names are still worth checking.
    if job:
        read_names(job, report)
    report.raise_if_any()
    raise AssertionError("a job was not parsed and nothing was said about it")


def parse_for_format(source: str, file_name: str) -> Job:
    """The syntax of a job, whatever it means; raises CompileError where it has none."""
    report = Mistakes(source, file_name)
    job = _parse(source, report)
    report.raise_if_any()
    if job is None:
        raise AssertionError("a job was not parsed and nothing was said about it")
    # Names may be wrong and still be laid out, but there is no form for a block in a block.
    for entry in job.braces.entries:
        if isinstance(entry, Block):
            report_nested(entry, report)
    report.raise_if_any()
    return job


def _parse(source: str, report: Mistakes) -> Job | None:
    """The syntax of a job as far as it can be read."""
    if not source.strip():
        hint = "write `job my-job { ... }`"
        report.error("empty", "the file holds no job", Span(1, 1, 2), hint)
        return None
    words = len(_WORD.findall(_COMMENT.sub("", source)))
    if words > _MOST_WORDS:
        message = f"a job has at most {_MOST_WORDS:,} words and signs, got {words:,}"
        report.error("too-large", message, None, "a job file is text of a few lines")
        return None
    parsed = parse_syntax(source)
    report.diagnostics.extend(parsed.diagnostics)
    return parsed.job
