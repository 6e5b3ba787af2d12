"""The mark that a job has ended, beside the address of its coordinator. Needs no torch.

It is made when everybody has been notified. Whoever comes later, or has not heard it, need not wait for a
coordinator; and one that is started on that folder knows that nobody waits for what it has to tell.
"""

import os
from contextlib import suppress
from pathlib import Path

_NAME = "over"


def mark_over(folder: Path) -> None:
    """Of the job; where the disk is full, it is not marked."""
    with suppress(OSError):
        (folder / _NAME).touch()


def is_over(folder: Path) -> bool:
    return os.path.exists(folder / _NAME)


def unmark_over(folder: Path) -> None:
    """Another job begins there."""
    with suppress(OSError):
        (folder / _NAME).unlink(missing_ok=True)


def is_over_beside(address_file: str | None) -> bool:
    """True if the job has ended whose coordinator leaves its address there."""
    return address_file is not None and is_over(Path(address_file).parent)
