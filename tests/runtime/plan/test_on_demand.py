"""The compiler as a process: what it prints, what it complains of, and that it ends when nobody waits."""

import os
import time
from pathlib import Path

import pytest

from recycle_runtime.plan import on_demand
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.on_demand import (
    OnDemandError,
    Recyclec,
    plan_arguments,
    read_made_plan,
    retime_arguments,
)


def ended(process: Recyclec) -> Recyclec:
    while not process.has_ended:
        time.sleep(0.02)
    return process


def test_a_plan_is_made_and_read_back(small_bundle: str, tmp_path: Path) -> None:
    job, out = tmp_path / "job", tmp_path / "made.plan"
    job.write_text(Bundle.read(small_bundle).job_source)
    process = Recyclec(plan_arguments("-", [(1, 1)], out=out), stdin=job, in_background=True)
    assert ended(process).output() == ""
    assert read_made_plan(out).plans[0].failed == ((1, 1),)


def test_its_complaint_is_the_error(tmp_path: Path) -> None:
    job = tmp_path / "bad.job"
    job.write_text("job x {")
    process = ended(Recyclec(plan_arguments(str(job), [(0, 0)], out=tmp_path / "never.plan")))
    with pytest.raises(OnDemandError, match=r"bad\.job:1:"):
        process.output()
    with pytest.raises(OnDemandError, match=r"never\.plan"):
        read_made_plan(tmp_path / "never.plan")


def test_without_the_compiler_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "find_recyclec", lambda: None)
    with pytest.raises(OnDemandError, match="recyclec is not installed here"):
        Recyclec(["--version"])


def test_a_killed_process_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in that notes its number and its priority, and never ends."""
    command = tmp_path / "recyclec"
    command.write_text(f'#!/bin/bash\necho $$ $(nice) > "{tmp_path}/note"\nexec sleep 1000\n')
    command.chmod(0o755)
    monkeypatch.setattr(on_demand, "find_recyclec", lambda: str(command))
    process = Recyclec([], in_background=True)
    note = tmp_path / "note"
    while not (note.exists() and note.read_text().strip()):
        time.sleep(0.02)
    number, priority = map(int, note.read_text().split())
    assert priority == min(19, os.nice(0) + 19) and not process.has_ended
    process.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_arguments() -> None:
    out, plan = Path("o.plan"), Path("p.plan")
    assert plan_arguments("j", [(1, 2), (0, 3)], {(0, 1): 2.0}, out=out) == [
        "plan", "j", "--failed", "0:3,1:2", "--slow", "0:1=2.000", "-o", "o.plan",
    ]  # fmt: skip
    assert plan_arguments("j", [], out=out)[:4] == ["compile", "j", "--failures", "0"]
    assert retime_arguments(plan, [], "j") == [
        "retime", "p.plan", "--failures", "0", "--times", "j", "--json",
    ]  # fmt: skip
