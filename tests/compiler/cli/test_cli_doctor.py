"""`recyclec doctor` puts its own packages above what the runtime finds."""

import subprocess
from typing import Any

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.version import __version__
from recycle_runtime.doctor.findings import Finding, as_json, from_json


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def asked(*args: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(args, 0, text, "")

    monkeypatch.setattr(subprocess, "run", asked)


def test_packages_then_runtime(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer(monkeypatch, as_json([Finding("torch", "9.9")]))
    assert main(["doctor", "--json"]) == 0
    rows = from_json(capsys.readouterr().out)
    assert rows[0] == Finding("recyclec", __version__)
    assert rows[-1] == Finding("torch", "9.9")
    assert "highspy" in {row.subject for row in rows}


def test_a_runtime_that_crashes_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "")
    assert main(["doctor"]) == 0
    assert "ended with an error" in capsys.readouterr().out


def test_a_runtime_without_an_answer_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def asked(*args: Any, **options: Any) -> None:
        raise subprocess.TimeoutExpired("recycle-run", 1)

    monkeypatch.setattr(subprocess, "run", asked)
    assert main(["doctor"]) == 0
    assert "no answer within" in capsys.readouterr().out
