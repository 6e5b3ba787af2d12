"""Where the grammar files are: inside an installed package, or at the top of a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def grammar_path(name: str) -> Path:
    """The path of a file of the grammar folder."""
    installed = _PACKAGE / "_grammar" / name
    return installed if installed.is_file() else _PACKAGE.parent / "grammar" / name
