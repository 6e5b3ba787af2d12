"""Mistakes in the user's program, said in one sentence that names the line of their file."""

import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from recycle_runtime.program.user_file import absolute

_LONGEST = 300


class ProgramError(Exception):
    """Mistake in the user's program; `hint` says what would work, where that is known."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.doing = ""
        """Activity that failed, where it is not that of the instruction that was run."""


@contextmanager
def blame(path: Path, doing: str) -> Generator[None]:
    """Turn exceptions of the user's code into a ProgramError that says where, and during what."""
    try:
        yield
    except ProgramError:
        raise
    except SyntaxError as error:
        raise ProgramError(syntax_sentence(path, error)) from error
    except (Exception, SystemExit) as error:
        where = place(path, line_of(path, error))
        raise ProgramError(f"{where}: {doing}: {_describe(error)}") from error


def syntax_sentence(path: Path, error: SyntaxError) -> str:
    """Sentence for a syntax error, with its place; the file may be one that the program imports."""
    known = error.filename is None or Path(error.filename) == absolute(path)
    file = path if known else Path(str(error.filename))
    return f"{place(file, error.lineno)}: syntax error: {error.msg}"


def place(path: Path, line: int | None) -> str:
    """`file:line`, or the file alone."""
    return str(path) if line is None else f"{path}:{line}"


def line_of(path: Path, error: BaseException) -> int | None:
    """The innermost line of the user's file on the way to the error."""
    own = str(absolute(path))
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == own), None)


def _describe(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"it ends the process (exit code {error.code})"
    words = " ".join(str(error).split())
    if len(words) > _LONGEST:
        words = f"{words[:_LONGEST]}..."
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
