"""The address that a coordinator leaves in its folder, on a disk without room."""

import errno
from pathlib import Path

import pytest

from recycle_runtime.cli.commands.coordinator import _announce  # pyright: ignore[reportPrivateUsage]
from recycle_runtime.files import WriteError


def full(path: Path, content: bytes) -> None:
    raise WriteError(path, "no space left on device") from OSError(errno.ENOSPC, "")


def test_a_job_that_is_under_way_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _announce(tmp_path, "here:1")
    assert [path.name for path in tmp_path.iterdir()] == ["address"]
    monkeypatch.setattr("recycle_runtime.cli.commands.coordinator.write_whole", full)
    _announce(tmp_path, "there:2")
    assert (tmp_path / "address").read_text(encoding="utf-8") == "here:1"
    assert f"cannot write {tmp_path / 'address'}: no space left on device" in caplog.text


def test_without_any_address_nobody_would_find_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recycle_runtime.cli.commands.coordinator.write_whole", full)
    with pytest.raises(WriteError, match="address: no space left"):
        _announce(tmp_path, "there:2")
