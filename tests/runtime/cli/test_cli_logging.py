"""`--log-level` and `--log-file` of both programs; a whole job logs in test_cli_run_signals.py."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_runtime.cli.main import main

Recyclec = Callable[..., tuple[int, str, str]]
LINE = re.compile(
    r"\S+Z [A-Z]+ host=\S+ worker=\S+ generation=\S+ step=\S+ recycle_(compiler|runtime)[\w.]*: .*"
)


def test_plans_are_logged(small_job: str, tmp_path: Path, recyclec: Recyclec) -> None:
    log = tmp_path / "x.log"
    plan = str(tmp_path / "x.plan")
    for level, least in (("info", 3), ("debug", 3)):
        words = ("compile", small_job, "-o", plan, "--quiet", "--log-level", level, "--log-file", str(log))
        assert recyclec(*words) == (0, "", "")
        lines = log.read_text().splitlines()
        assert all(LINE.fullmatch(line) for line in lines)
        assert sum("recycle_compiler.cli.commands.compile: job small, " in line for line in lines) >= least
        least += 3


def test_nothing_is_logged_unless_asked_for(small_job: str, tmp_path: Path, recyclec: Recyclec) -> None:
    assert recyclec("check", small_job)[2].count("\n") == 1


def test_a_log_file_that_cannot_be_opened(
    small_bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "no" / "x.log"
    assert main(["streams", small_bundle, "--log-file", str(log)]) == 1
    assert capsys.readouterr() == ("", f"recycle-run: error: {log}: no such file or directory\n")


def test_a_level_that_does_not_exist(small_bundle: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["streams", small_bundle, "--log-level", "loud"])
    assert stop.value.code == 2
    assert "argument --log-level: invalid choice: 'loud'" in capsys.readouterr().err
