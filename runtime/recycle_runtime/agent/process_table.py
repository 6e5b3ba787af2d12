"""Table of worker processes and their lines of the board, written down for the next agent of this node.

No torch.
"""

import json
import logging
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from recycle_runtime.files import reason
from recycle_runtime.protocol.codec import ProtocolError, decode, encode
from recycle_runtime.protocol.messages.members import Member

PROCESSES = "processes.json"
"""In the folder of the agent."""
_LOGGER = logging.getLogger(__name__)


class Row(NamedTuple):
    """A worker process that was started."""

    member: Member
    line: int
    pid: int


class ProcessTable:
    """The worker processes of a node, by name."""

    def __init__(self, path: Path, room: int) -> None:
        self._path, self._room = path, room
        self._rows: dict[Member, Row] = {}
        self._failed: Counter[int] = Counter()
        """Processes that have ended by themselves before their time, by line: its device may be at fault."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows.values())

    def written(self) -> tuple[Row, ...]:
        """As the agent before this one has left it."""
        try:
            return decode(tuple[Row, ...], json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ProtocolError):
            return ()

    def free_line(self) -> int | None:
        """The first of those on which fewest processes have failed."""
        taken = {row.line for row in self._rows.values()}
        free = [line for line in range(self._room) if line not in taken]
        return min(free, key=lambda line: (self._failed[line], line), default=None)

    def failed(self, line: int) -> None:
        """A process on this line has."""
        self._failed[line] += 1

    def row_of(self, member: Member) -> Row | None:
        return self._rows.get(member)

    def add(self, row: Row) -> None:
        self._rows[row.member] = row
        self._write()

    def rename(self, member: Member, to: Member) -> None:
        if (row := self._rows.pop(member, None)) is not None:
            self.add(row._replace(member=to))

    def remove(self, line: int) -> Member | None:
        """Remove the process on this line of the board; return which member it was."""
        row = next((row for row in self._rows.values() if row.line == line), None)
        if row is None:
            return None
        del self._rows[row.member]
        self._write()
        return row.member

    def forget(self) -> None:
        """Delete the table: no agent comes after this one."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        aside = self._path.with_suffix(".new")
        try:
            aside.write_text(json.dumps(encode(self.rows)), encoding="utf-8")
            aside.replace(self._path)
        except OSError as error:
            # Only an agent after this one would miss it, and workers of which it does not know end by
            # themselves: one without an agent is found by the coordinator.
            _LOGGER.warning("cannot write %s: %s", self._path, reason(error))
