"""Files of every kind, read without an end to fear."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recycle_runtime import files
from recycle_runtime.files import TooLargeError, lock_checkpoints, naming, read_bounded


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
    """A writer that is there may take its time, as in `recyclec compile <(some command)`."""
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


def test_a_folder_of_checkpoints_is_for_one_job(tmp_path: Path) -> None:
    """Two jobs deleted each other's. The same process may ask again, and nothing is left in the folder."""
    lock_checkpoints(tmp_path)
    lock_checkpoints(tmp_path)
    source = "import sys; from pathlib import Path; from recycle_runtime.files import *; "
    source += "lock_checkpoints(Path(sys.argv[1]))"
    command = [sys.executable, "-c", source, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"FolderTakenError: --checkpoint {tmp_path} is in use by another job" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_fails_says_of_which_file() -> None:
    with pytest.raises(OSError, match=r"x\.json") as raised, naming("x.json"):
        raise OSError(28, "No space left on device")
    assert files.sentence(raised.value) == "x.json: no space left on device"
    with pytest.raises(OSError, match="other"), naming("x.json"):
        raise OSError(28, "No space left on device", "other")
