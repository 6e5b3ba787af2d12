"""Output of recyclec and recycle-run: data to stdout, words to stderr, exit codes."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from recycle_runtime.cli.standard_streams import abandon
from recycle_runtime.files import WriteError, check_writable, reason, write_whole

DONE, INPUT_ERROR, USAGE, NO_PLAN, BUG, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 70, 130, 141
STANDARD = "-"
"""In place of a file name: stdin, or stdout behind `-o`."""


class UserError(Exception):
    """Something the user can mend, in one sentence, and the exit code that goes with it."""

    def __init__(self, sentence: str, exit_code: int = INPUT_ERROR) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class UsageError(UserError):
    """Options that make no sense, or not together."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, USAGE)


@dataclass(frozen=True, slots=True)
class Output:
    """Output that the user allows: words or none, colour or none."""

    program: str
    """Begins every sentence."""
    quiet: bool = False
    color: bool = True
    written: list[str] = field(default_factory=list[str])
    """Files that are in place by now, for the message after an interrupt."""

    def colored(self, stream: TextIO) -> bool:
        """True if colour may be used on this stream."""
        return self.color and stream.isatty() and os.environ.get("TERM") != "dumb"

    def data(self, text: str) -> None:
        with _stdout() as stdout:
            stdout.write(text)

    def line(self, text: str) -> None:
        """A line that is flushed at once."""
        self.data(f"{text}\n")
        self.flush()

    def flush(self) -> None:
        with _stdout() as stdout:
            stdout.flush()

    def words(self, text: str) -> None:
        """As it is: with colours, perhaps."""
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            # Nobody can be told; the exit code still says how it went.
            abandon(sys.stderr)

    def say(self, sentence: str) -> None:
        if not self.quiet:
            self.words(f"{self.program}: {printable(sentence)}\n")

    def error(self, sentence: str) -> None:
        """Said in any case."""
        self.words(f"{self.program}: error: {printable(sentence)}\n")

    def deliver(self, text: str, path: str | None) -> None:
        """The result of a command: into the file asked for, else to stdout."""
        if to_stdout(path):
            self.data(text)
        elif path is not None:
            write_whole(Path(path), text.encode("utf-8"))
            self.written.append(path)


def printable(text: str) -> str:
    """Without what would move the cursor or change colours: names of files may have anything in them."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return repr(character)[1:-1]


def to_stdout(path: str | None) -> bool:
    return path in (None, STANDARD)


def check_target(path: str | None, source: str) -> None:
    """Refuse, before any work, an output that cannot be written or that is the input itself."""
    if path is None or path == STANDARD:
        return
    refuse_overwriting(path, source, "the input")
    check_writable(Path(path))


def refuse_overwriting(path: str, source: str, what: str) -> None:
    """Raise if both are the same file, whatever their names; `-` is what stdin comes from."""
    try:
        same = os.path.isfile(path) and os.path.samestat(
            os.stat(path), os.fstat(0) if source == STANDARD else os.stat(source)
        )
    except OSError:
        # A file that is not there is not overwritten.
        return
    if same:
        raise UsageError(f"{path} is {what}; `-o` must name another file")


@contextmanager
def _stdout() -> Generator[TextIO]:
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon(sys.stdout)
        raise WriteError("stdout", reason(error)) from error
