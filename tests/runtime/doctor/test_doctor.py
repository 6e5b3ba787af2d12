"""The report names what it looked at, and says what to do only where something is wrong."""

import importlib.util
import resource
import shutil
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from recycle_runtime.cli.main import main
from recycle_runtime.doctor import machine as machine_module
from recycle_runtime.doctor.findings import Finding, as_json, findings_table, from_json, package
from recycle_runtime.doctor.machine import machine
from recycle_runtime.doctor.torch_build import torch_build


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def always(value: object) -> Callable[[object], object]:
    def answer(asked: object) -> object:
        return value

    return answer


def found(subject: str) -> Finding:
    return next(finding for finding in machine() if finding.subject == subject)


def test_every_row_says_something() -> None:
    rows = machine()
    assert [row.subject for row in rows] == [
        "system",
        "python",
        "cores",
        "memory",
        "shared memory",
        "temporary files",
        "open files",
        "clock",
        "host name",
        "loopback",
    ]
    assert all(row.found for row in rows)


def test_little_shared_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", always(Usage(64 << 20, 0, 1 << 40)))
    assert "--shm-size" in found("shared memory").advice
    monkeypatch.setattr(shutil, "disk_usage", always(Usage(8 << 30, 0, 1 << 40)))
    assert found("shared memory").advice == ""


def test_few_open_files_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", always((256, 1024)))
    assert "4096" in found("open files").advice
    monkeypatch.setattr(resource, "getrlimit", always((1024, resource.RLIM_INFINITY)))
    assert found("open files") == Finding("open files", "1024, can be raised to no limit")


def test_a_name_that_nobody_else_can_reach_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.1.1"]

    def look_up(name: str, *more: object) -> Iterator[tuple[object, ...]]:
        return iter([(2, 1, 0, "", (address, 0)) for address in addresses])

    monkeypatch.setattr(machine_module.socket, "getaddrinfo", look_up)
    assert "GLOO_SOCKET_IFNAME" in found("host name").advice
    addresses.append("10.0.0.7")
    assert found("host name").advice == ""


def test_a_machine_without_torch_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", always(None))
    (row,) = torch_build()
    assert (row.subject, row.found) == ("torch", "not installed")
    assert "recyclec[runtime]" in row.advice


def test_an_absent_package_is_noticed() -> None:
    assert package("torch", "").found != "not installed"
    assert package("no-such-package", "get it") == Finding("no-such-package", "not installed", "get it")


def test_advice_stands_below_its_row() -> None:
    rows = [Finding("a", "1"), Finding("longer", "2", "do this")]
    assert findings_table(rows) == "a       1\nlonger  2\n        ! do this\n"


def test_findings_come_back_from_json() -> None:
    rows = [Finding("a", 'quoted "text"'), Finding("b", "2", "do this")]
    assert from_json(as_json(rows)) == rows
    for text in ("", "{}x", "[1]", '[{"else": 1}]'):
        with pytest.raises(ValueError):
            from_json(text)


def test_the_command_prints_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "\ntorch" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    assert {"python", "torch", "gloo"} <= {row.subject for row in from_json(capsys.readouterr().out)}
