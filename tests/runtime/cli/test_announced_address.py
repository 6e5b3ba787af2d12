"""The address that a coordinator leaves in its folder: what may stand there, and a disk without room."""

import errno
from pathlib import Path

import pytest

from recycle_runtime.cli.commands.coordinator import _announce  # pyright: ignore[reportPrivateUsage]
from recycle_runtime.cli.main import main
from recycle_runtime.files import WriteError
from recycle_runtime.protocol.address import is_host
from recycle_runtime.protocol.framing import TOKEN, new_token
from tests.runtime.cli.ended_jobs import started_again


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


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ("node7", True),
        ("train-0.service_2.default.svc.", True),
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("[fe80::1%eth0]", True),
        ("node7:29500", False),
        ("node 7", False),
        ("node7\n", False),
        ("http//node7", False),
        ("node7..svc", False),
        ("-node7", False),
        ("", False),
    ],
)
def test_what_may_be_a_host(text: str, may_be: bool) -> None:
    assert is_host(text) is may_be


@pytest.mark.parametrize("text", ["node7:29500", "node 7"])
def test_an_address_that_cannot_be_is_refused(
    text: str,
    tmp_path: Path,
    square: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(TOKEN, new_token())
    argv = ["coordinator", square, "--steps", "9", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "s")]
    assert main([*argv, "--advertise", text]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"--advertise must be a host without a port, like 10.0.0.1 or node7, got {text!r}")


def test_a_name_that_is_not_known_here_is_told(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other nodes may know it: nothing is refused."""
    monkeypatch.setattr("recycle_runtime.cli.commands.coordinator.is_known_address", "node7".__ne__)
    argv = started_again(square, tmp_path / "state", monkeypatch)
    assert main([*argv, "--advertise", "node7"]) == 0
    assert "--advertise node7: this machine does not know that name" in capsys.readouterr().err
    assert (tmp_path / "state" / "address").read_text(encoding="utf-8").startswith("node7:")
