"""The table of what outlives a coordinator, and the journal read by it.

A message of a worker, or what follows from it, is written down, said again, or not needed any more. Needs
no torch.
"""

from pathlib import Path

from recycle_runtime.coordinator import last_generation, plans
from recycle_runtime.coordinator.journal import Lines, read_lines
from recycle_runtime.coordinator.participants import PARTICIPANTS

TABLE = (
    *last_generation.MEMORY,
    *plans.MEMORY,
    *(memory for participant in PARTICIPANTS for memory in participant.memory),
)
FIELDS = {name: field for memory in TABLE for name, field in memory.journal.items()}
"""Of lines of the journal."""


def read_journal(path: str | Path) -> Lines:
    """A journal; JournalError if a line says what it cannot say."""
    return read_lines(path, FIELDS)
