"""Choice of the one of several coordinators that coordinates, in a folder that they share. Needs no torch.

A coordinator begins a term by making the file `term-N` of the next number, which a file system lets one
process do. From then on it renews a lease: it writes a sign of life into that file, and nobody else does.
Another one takes over, with the next term, when the newest file has not changed for a lease of its own clock,
so no clock is compared with another. A coordinator that could not renew for a good part of a lease, because
it was paused or cut off from the folder, ends before it does anything else: when another takes over, it has
ended, or ends when it wakes up.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

LEASE = 10.0
_HELD_FOR = 0.6
"""The part of a lease after which one that was not renewed counts as lost by who has it."""
_TURN = 1.0
_LAST_TURN = 10.0
"""Seconds that candidates wait for those before them, by number, and at most."""
_LONGEST = 1000
_PREFIX = "term-"


class Candidacy(Enum):
    """State of a candidate."""

    WAITS = "another one coordinates, or none has begun"
    LEADS = "it coordinates"
    OVER = "the job has ended"


@dataclass(frozen=True, slots=True)
class Term:
    """As the file of a term says."""

    number: int
    candidate: int = -1
    """Number of the candidate that has begun the term; -1 if that has not been written yet."""
    host: str = ""
    boot: str = ""
    """The number of that host's kernel since it has started."""
    renewed: int = 0
    """Number of times that the term's lease has been renewed."""
    is_over: bool = False
    """True if the job has ended in it."""


def newest_term(folder: Path) -> Term | None:
    """None if no coordinator has begun."""
    number = _newest_number(folder)
    if not number:
        return None
    try:
        text = _path(folder, number).read_bytes()[:_LONGEST]
        fields: Any = json.loads(text)
    except (OSError, ValueError, RecursionError):
        fields = None
    return _term(number, fields)


class Leadership:
    """Of one coordinator among those that share a folder."""

    def __init__(
        self,
        folder: Path,
        candidate: int,
        lease: float = LEASE,
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """Candidates are numbered from 0; the first one alone begins a job that nobody has begun."""
        self._folder, self._candidate, self._lease, self._clock = folder, candidate, lease, clock
        self._boot = _boot_number()
        self._term: Term | None = None
        """That it has begun."""
        self._handle = -1
        self._renewed = 0.0
        self._seen: Term | None = None
        self._since = 0.0
        """Time at which the newest term was first seen in its current form."""
        self._is_first_look = True
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def number(self) -> int:
        """Of its term; 0 if it has none."""
        return 0 if self._term is None else self._term.number

    @property
    def is_held(self) -> bool:
        """True if it may act: nobody else can have taken over."""
        return self._term is not None and self._clock() - self._renewed < _HELD_FOR * self._lease

    def look(self) -> Candidacy:
        """To be called every now and then, until it leads or the job has ended."""
        newest, now = newest_term(self._folder), self._clock()
        is_first_look, self._is_first_look = self._is_first_look, False
        if newest is None:
            return self._begin(1) if self._candidate == 0 else Candidacy.WAITS
        if newest != self._seen:
            self._seen, self._since = newest, now
        if newest.is_over and not (is_first_look and self._candidate == 0):
            return Candidacy.OVER
        turn = min(self._candidate * _TURN, _LAST_TURN)
        if newest.is_over or now - self._since >= self._lease + turn or self._has_died(newest):
            return self._begin(newest.number + 1)
        return Candidacy.WAITS

    def renew(self) -> None:
        """Nothing happens if that is not possible; see `is_held`. A lease that was lost stays lost."""
        if self._term is None or not self.is_held:
            return
        now = self._clock()
        try:
            if _newest_number(self._folder) > self._term.number:
                self.lose()
                return
            self._write(self._term.renewed + 1)
        except OSError:
            return
        self._renewed = now

    def lose(self) -> None:
        """Another one has taken over."""
        self._renewed = float("-inf")

    def end(self) -> None:
        """The job has ended; nobody needs to take over."""
        if self._term is not None and self.is_held:
            with suppress(OSError):
                self._write(self._term.renewed + 1, is_over=True)

    def _begin(self, number: int) -> Candidacy:
        """A term, if no other candidate is faster."""
        now = self._clock()
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            handle = os.open(_path(self._folder, number), flags, 0o666)
        except FileExistsError:
            return Candidacy.WAITS
        with suppress(OSError):
            # For the process that comes after this one here, which need not wait.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._handle = handle
        self._term = Term(number, self._candidate, socket.gethostname(), self._boot)
        self._write(1)
        self._renewed = now
        return Candidacy.LEADS

    def _write(self, renewed: int, *, is_over: bool = False) -> None:
        assert self._term is not None
        self._term = Term(self._term.number, self._candidate, self._term.host, self._boot, renewed, is_over)
        text = json.dumps(asdict(self._term)) + "\n"
        os.pwrite(self._handle, text.encode(), 0)
        os.ftruncate(self._handle, len(text.encode()))
        # Where the folder is on another machine, this is when it gets there.
        os.fsync(self._handle)

    def _has_died(self, term: Term) -> bool:
        """True if it was this candidate's own, on this host, which knows that its process runs no more."""
        if term.candidate != self._candidate or not term.boot or term.boot != self._boot:
            return False
        try:
            handle = os.open(_path(self._folder, term.number), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True


def _newest_number(folder: Path) -> int:
    """0 if there is none."""
    names = (name.removeprefix(_PREFIX) for name in os.listdir(folder) if name.startswith(_PREFIX))
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number:06d}"


def _term(number: int, fields: Any) -> Term:
    """Parse the fields of a term; invalid ones count as not yet written."""
    kinds = {"number": int, "candidate": int, "host": str, "boot": str, "renewed": int, "is_over": bool}
    if not isinstance(fields, dict):
        return Term(number)
    found = cast(dict[str, Any], fields)
    if found.keys() != kinds.keys() or any(type(found[name]) is not kind for name, kind in kinds.items()):
        return Term(number)
    found["number"] = number
    return Term(**found)


def _boot_number() -> str:
    """Nothing if the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
