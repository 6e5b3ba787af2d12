"""Stdout and stderr as a shell may leave them: closed, on a full disk, or a pipe without a reader."""

import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO, cast


class ClosedStream(io.TextIOBase):
    """Stands for a stdout that was closed before we started: writing to it is an error."""

    def write(self, s: str, /) -> int:
        raise OSError(errno.EBADF, "it is closed")


def open_standard_streams() -> None:
    """Take the place of streams that are closed, or the next file to be opened would."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if cast(TextIO | None, sys.stdout) is None:
        sys.stdout = cast(TextIO, ClosedStream())
    if cast(TextIO | None, sys.stderr) is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def abandon(stream: TextIO) -> None:
    """After a failed write: drop what is buffered, so that Python reports nothing when it closes."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
