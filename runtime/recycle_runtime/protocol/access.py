"""Access of a process to its job: the token, and encryption of connections. Needs no torch.

The token may stand in a file instead, and be exchanged while the job runs: the file is read for every new
connection. Whoever connects proves the first line, or the next if that is not accepted; whoever listens
accepts any. A connection that is there stays as it is.
"""

import logging
import os
import stat
from pathlib import Path
from typing import Final

from recycle_runtime.files import reason

_log = logging.getLogger(__name__)

SHORTEST_TOKEN: Final = 16
MOST_TOKENS: Final = 4
"""Lines of a file: the token, and those that are on their way in or out."""
_LONGEST_FILE: Final = 4096


class TokenFileError(ValueError):
    """A file that holds no tokens, or shows them to others; a sentence says why."""


class Access:
    """The tokens of a job as they are now, and whether this process insists on TLS."""

    def __init__(self, token: str = "", token_file: str | None = None, *, tls: bool = False) -> None:
        """TokenFileError if the file is not as it should be."""
        self._known = (token,) if token_file is None else read_tokens(Path(token_file))
        # It is read again by processes that run the user's code, which may change the working directory.
        self._file, self.tls = None if token_file is None else Path(token_file).absolute(), tls
        self._is_told = False

    def tokens(self) -> tuple[str, ...]:
        """The one to prove first. While the file cannot be used, those that it held before."""
        if self._file is None:
            return self._known
        try:
            self._known = read_tokens(self._file)
            self._is_told = False
        except TokenFileError as error:
            if not self._is_told:
                _log.warning("%s; what it held before is used", error)
            self._is_told = True
        return self._known


Token = str | Access
"""A token, or where it stands."""


def access_of(token: Token) -> Access:
    return Access(token) if isinstance(token, str) else token


def read_tokens(path: Path) -> tuple[str, ...]:
    """One for each line; TokenFileError if there is none, or others may read them."""
    try:
        # What is looked at is what is read.
        with open(path, "rb", opener=_without_waiting) as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read(_LONGEST_FILE + 1).decode("ascii")
    except OSError as error:
        raise TokenFileError(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"{path}: a token is letters and digits, and these are other bytes") from None
    tokens = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not tokens or len(text) > _LONGEST_FILE or len(tokens) > MOST_TOKENS:
        raise TokenFileError(f"{path}: a file with 1 to {MOST_TOKENS} tokens is needed, one on each line")
    if min(map(len, tokens)) < SHORTEST_TOKEN:
        raise TokenFileError(f"{path}: a token has {SHORTEST_TOKEN} letters or more")
    return tokens


def _without_waiting(path: str, flags: int) -> int:
    """A pipe would wait for whoever writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise TokenFileError(f"{path}: not a file")
    if status.st_uid not in (os.geteuid(), 0):
        raise TokenFileError(f"{path}: belongs to another user")
    if status.st_mode & 0o077:
        raise TokenFileError(f"{path}: others may read or change the token; run `chmod 600 {path}`")
