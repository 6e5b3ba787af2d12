"""Files that are written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write aside, then rename: a reader sees the old file or the new one, never half of it."""
    if path.exists() and not path.is_file():
        # A device or a pipe must not be replaced by a file.
        path.write_bytes(content)
        return
    # A link stays a link; the file it names changes.
    path = path.resolve()
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, _mode_for(path))
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def check_writable(path: Path) -> None:
    """Raise what writing would raise, before minutes of work instead of after."""
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder, not a file to write", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "no such folder", str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(13, "nothing may be written in this folder", str(path.parent))


def _mode_for(path: Path) -> int:
    """The mode the file has, or the one a new file would get; mkstemp alone would make it private."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
