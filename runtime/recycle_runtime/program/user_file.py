"""Path of the user's file, also once their code has changed the working directory. Standard library only.

Messages name a file as the user did. A relative name is resolved before their code runs.
"""

from contextlib import suppress
from pathlib import Path

_STARTS: dict[Path, Path] = {}


def note_start(path: Path) -> None:
    """Code in this file is about to run: it is looked for from here on where it is found now."""
    # A working directory may have been removed.
    with suppress(FileNotFoundError):
        _STARTS[path] = Path.cwd()


def folder_at_start(path: Path) -> Path:
    """The working directory before the code in this file ran."""
    return _STARTS.get(path) or Path.cwd()


def absolute(path: Path) -> Path:
    """As `Path.absolute`, before the code in this file ran."""
    return path if path.is_absolute() else folder_at_start(path) / path
