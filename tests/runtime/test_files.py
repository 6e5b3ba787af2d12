"""Files of every kind, read without an end to fear."""

import os
import threading
from pathlib import Path

import pytest

from recycle_runtime import files
from recycle_runtime.files import FolderTakenError, TooLargeError, read_bounded, take_folder


def test_devices_without_an_end() -> None:
    with pytest.raises(TooLargeError):
        read_bounded("/dev/zero", 1000)
    assert read_bounded("/dev/null", 1000) == b""


def test_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert read_bounded(path, 3) == b"abc"
    with pytest.raises(TooLargeError):
        read_bounded(path, 2)
    with pytest.raises(IsADirectoryError):
        read_bounded(tmp_path, 2)


def test_a_pipe_that_nobody_writes_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_WRITER_SECONDS", 0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody writes to"):
        read_bounded(tmp_path / "pipe", 10)


def test_a_pipe_with_a_slow_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is there may take its time, as in `recyclec compile <(some command)`."""
    monkeypatch.setattr(files, "_WRITER_SECONDS", 0)
    reader, writer = os.pipe()
    more = threading.Event()

    def write() -> None:
        more.wait()
        os.write(writer, b"ab")
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    threading.Timer(0.2, more.set).start()
    assert read_bounded(f"/dev/fd/{reader}", 10) == b"ab"
    thread.join()
    os.close(reader)


def test_a_folder_that_is_taken(tmp_path: Path) -> None:
    held = take_folder(tmp_path, "coordinator", "--checkpoint")
    if (pid := os.fork()) == 0:
        try:
            take_folder(tmp_path, "coordinator", "--checkpoint")
        except FolderTakenError as error:
            os._exit(0 if str(error).startswith(f"--checkpoint {tmp_path} is in use by") else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(held)
