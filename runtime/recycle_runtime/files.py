"""Files that are written whole or not at all, and why one cannot be; folders that one process has.

Standard library only.
"""

import errno
import fcntl
import os
import select
import socket
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_WRITER_SECONDS = 5


class WriteError(OSError):
    """A file that cannot be written, in one sentence."""

    def __init__(self, target: str | Path, why: str) -> None:
        super().__init__(f"cannot write {target}: {why}")


def write_whole(path: Path, content: bytes) -> None:
    """Write aside, then rename: a reader sees the old file or the new one, never half of it."""
    try:
        _write_whole(path, content)
    except OSError as error:
        # The error names the file aside, or none, and neither helps.
        raise WriteError(path, reason(error)) from error


@contextmanager
def writing_whole(path: Path) -> Generator[BinaryIO]:
    """The same for what is written piece by piece; WriteError if that does not succeed."""
    try:
        with _aside(path, _mode_of(path)) as file:
            yield file
    except OSError as error:
        raise WriteError(path, reason(error)) from error


class TooLargeError(OSError):
    """A file with more bytes than are wanted, in one sentence."""


def read_bounded(path: str | Path, most: int) -> bytes:
    """Content of a file of any kind; never more than `most` bytes, and no wait for a pipe without a writer.

    TooLargeError if there is more; OSError if it cannot be read. Devices may have no end, and a pipe may have
    no one who writes to it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            _wait_for_writer(descriptor, path)
        os.set_blocking(descriptor, True)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise TooLargeError(errno.EFBIG, f"more than {most} bytes", str(path))
    return data


def _wait_for_writer(descriptor: int, path: str | Path) -> None:
    """Some seconds; one that is there may take as long as it likes."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if poll.poll(_WRITER_SECONDS * 1000):
        return
    try:
        # With a writer there would be nothing yet; without one this is the end.
        os.read(descriptor, 1)
    except BlockingIOError:
        return
    raise OSError(errno.EPIPE, "a pipe that nobody writes to", str(path))


class FolderTakenError(OSError):
    """Another process has this folder, in one sentence."""


def take_folder(folder: Path, who: str, *, takes_over: bool = False) -> int:
    """Keep a folder for this process, until it ends or closes what this returns.

    Processes that it forks have no part in it: one that is started after its death may take the folder. `who`
    is what takes it, such as `agent`. `takes_over`: from one who has no right to it any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if takes_over:
        (folder / "lock").unlink(missing_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        os.close(handle)
        raise FolderTakenError(
            f"--state {folder} is in use by {holder}: give every {who} a folder of its own"
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"the {who} with process number {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return handle


_locked: dict[tuple[int, int], int] = {}
"""Folders of checkpoints that this process has, by device and number."""


def lock_checkpoints(folder: Path, *, takes_over: bool = False) -> None:
    """Keep a folder of checkpoints for this process until it ends; it may ask again.

    Nothing is written, so that it works on a full disk too. Where the file system has no such locks, nothing
    is locked. `takes_over`: whoever has it may be one who has no right to it any more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(handle)
    if (held := _locked.pop((status.st_dev, status.st_ino), None)) is not None:
        os.close(held)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        if takes_over:
            return
        raise FolderTakenError(
            f"--checkpoint {folder} is in use by another job, and each would delete the other's checkpoints: "
            "name another folder"
        ) from None
    except OSError:
        os.close(handle)
        return
    _locked[status.st_dev, status.st_ino] = handle


def unlock_checkpoints(folder: Path) -> None:
    """Let others have it, before this process ends; nothing happens if it is gone, or was not locked."""
    with suppress(OSError):
        status = folder.stat()
        if (held := _locked.pop((status.st_dev, status.st_ino), None)) is not None:
            os.close(held)


def check_writable(path: Path) -> None:
    """Raise what writing would raise, before minutes of work instead of after."""
    try:
        mode = _mode_of(path)
    except OSError as error:
        raise WriteError(path, reason(error)) from error
    if mode is not None and stat.S_ISDIR(mode):
        raise WriteError(path, "it is a folder")
    if mode is not None and not stat.S_ISREG(mode):
        return
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise WriteError(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise WriteError(path, f"nothing may be written in the folder {folder}")


def reason(error: OSError) -> str:
    """Reason of a system error, in lower case."""
    return (error.strerror or str(error)).lower()


def sentence(error: OSError) -> str:
    """Sentence for a system error, with its file."""
    if isinstance(error, WriteError):
        return str(error)
    return f"{error.filename}: {reason(error)}" if error.filename else reason(error)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Generator[None]:
    """A read or write that fails in here says of which file: that is known only where one is opened."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or os.fspath(path)
        raise


def _write_whole(path: Path, content: bytes) -> None:
    mode = _mode_of(path)
    if mode is not None and not stat.S_ISREG(mode):
        # A device or a pipe must not be replaced by a file.
        path.write_bytes(content)
        return
    with _aside(path, mode) as file:
        file.write(content)


@contextmanager
def _aside(path: Path, mode: int | None) -> Generator[BinaryIO]:
    """A file that takes the place of `path` when it is complete and on the disk."""
    # A link stays a link; the file it names changes.
    path = Path(os.path.realpath(path))
    handle, aside = tempfile.mkstemp(prefix=f".{path.name[:_LONGEST_PREFIX]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, _new_mode() if mode is None else stat.S_IMODE(mode))
        os.replace(aside, path)
    except BaseException as error:
        os.unlink(aside)
        if isinstance(error, OSError) and error.filename in (None, aside):
            # A write that fails does not say where to; the file aside means nothing to the user.
            error.filename = str(path)
        raise


_LONGEST_PREFIX = 100
"""The name of the file aside must not be too long where that of the file is not."""


def _mode_of(path: Path) -> int | None:
    """Kind and permissions of what is there; None when nothing is. A link that leads nowhere raises."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _new_mode() -> int:
    """Mode of a new file; mkstemp alone would make it private."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
