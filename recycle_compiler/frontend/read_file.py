"""Reads text from a file that may be anything: missing, a folder, a disk image."""

import sys
from pathlib import Path
from typing import TextIO, cast

from recycle_runtime.files import TooLargeError, read_bounded

_KINDS = {
    FileNotFoundError: "does not exist",
    IsADirectoryError: "is a folder",
    PermissionError: "may not be read",
}


class ReadError(Exception):
    """A file that is no text or cannot be read; `code` and message say why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a file, without a byte order mark and with plain newlines."""
    return decode_text(read_bytes(path, most_bytes))


def read_bytes(path: Path | None, most_bytes: int) -> bytes:
    """Content of a file, or of stdin where no path is given."""
    try:
        data = _read_stdin(most_bytes + 1) if path is None else read_bounded(path, most_bytes)
    except TooLargeError:
        raise ReadError("too-large", f"is larger than {most_bytes >> 20} MiB") from None
    except OSError as error:
        raise ReadError("unreadable", _why(error)) from None
    except ValueError:
        # A NUL in the path itself.
        raise ReadError("unreadable", "is no file name") from None
    if len(data) > most_bytes:
        raise ReadError("too-large", f"is larger than {most_bytes >> 20} MiB")
    return data


def decode_text(data: bytes) -> str:
    """Bytes as text, without a byte order mark and with plain newlines."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReadError("not-text", f"is not UTF-8 text (byte {error.start:,})") from None
    if "\0" in text:
        raise ReadError("not-text", f"is not text (a zero at byte {data.index(0):,})")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_stdin(most_bytes: int) -> bytes:
    stdin = cast(TextIO | None, sys.stdin)
    if stdin is None:
        raise OSError("it is closed")
    return stdin.buffer.read(most_bytes)


def _why(error: OSError) -> str:
    for kind, words in _KINDS.items():
        if isinstance(error, kind):
            return words
    return f"cannot be read: {(error.strerror or str(error)).lower()}"
