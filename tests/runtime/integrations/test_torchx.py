"""The component of torchx: what it asks a scheduler for, and a whole run on this machine."""

import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.cli.main import parse_arguments
from recycle_runtime.integrations.words import JobError
from tests.runtime.recovery.watched import TINY, processes_of
from tests.runtime.training.alone import train_alone

HAS_TORCHX = find_spec("torchx") is not None
needs_torchx = pytest.mark.skipif(
    not HAS_TORCHX, reason="torchx is not installed: pip install 'recyclec[torchx]'"
)
_PATIENCE = 300.0
_PACKAGE = "recycle_runtime.integrations.torchx"


def component(square: str, **options: Any) -> Any:
    from recycle_runtime.integrations.torchx.component import job

    usual: dict[str, Any] = {
        "plan": square,
        "state": "/s",
        "workers_per_node": 2,
        "program": "p.py",
        "steps": 3,
    }
    return job(**(usual | options))


def words(role: Any) -> list[str]:
    flag, line = role.args
    assert (role.entrypoint, flag) == ("bash", "-c")
    execute, program, *rest = shlex.split(line)
    assert (execute, program) == ("exec", "recycle-run")
    return rest


def test_torchx_is_told_where_the_component_is(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module(_PACKAGE, run_name="__main__")
    path, _, name = capsys.readouterr().out.strip().partition(":")
    assert f"def {name}(" in Path(path).read_text(encoding="utf-8")


@pytest.mark.skipif(HAS_TORCHX, reason="torchx is installed")
def test_without_torchx_one_sentence_says_what_to_install(square: str) -> None:
    with pytest.raises(ImportError, match=r"pip install 'recyclec\[torchx\]'"):
        component(square)


@needs_torchx
def test_a_coordinator_and_agents(square: str) -> None:
    app = component(square, options="--device cpu --checkpoint '/my kept' --resume", port=4000)
    coordinator, agent = app.roles
    assert (coordinator.num_replicas, agent.num_replicas) == (1, 2)
    told = parse_arguments(words(coordinator))
    assert (told.command, told.listen, told.nodes, told.steps) == ("coordinator", "0.0.0.0:4000", 2, 3)
    assert (told.checkpoint, told.resume, told.state) == ("/my kept", True, "/s/coordinator")
    told = parse_arguments(words(agent))
    # Every replica has a folder of its own; the first role is the coordinator's.
    assert (told.command, told.state) == ("agent", "/s/agent-${replica_id}")
    assert told.coordinator == "$${${rank0_env}:-localhost}:4000"
    assert (told.checkpoint, told.program, told.device) == ("/my kept", "p.py", "cpu")
    assert (agent.resource.cpu, agent.resource.gpu) == (2, 0)
    assert component(square).roles[1].resource.gpu == 0
    assert component(square, options="--device cuda").roles[1].resource.gpu == 2
    assert coordinator.env == agent.env and len(agent.env["RECYCLE_TOKEN"]) >= 32
    assert component(square).roles[0].env != agent.env
    assert component(square, options="--token-file /t").roles[0].env == {}


@needs_torchx
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"nodes": 1}, "nodes 1 with workers_per_node 2 is too few"),
        ({"program": "a$b.py"}, "dollar sign"),
        ({"options": "--nonsense"}, "unrecognized arguments: --nonsense"),
    ],
)
def test_what_makes_no_sense(square: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(JobError, match=why):
        component(square, **options)


def torchx_run(folder: Path, square: str, steps: int, options: str = "") -> "subprocess.Popen[str]":
    """A job of two agents on this machine."""
    command = folder / "recycle-run"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m recycle_runtime.cli "$@"\n')
    command.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = subprocess.run([sys.executable, "-m", _PACKAGE], capture_output=True, text=True, check=True)
    words = ["run", "--wait", "--scheduler", "local_cwd", where.stdout.strip(), "--plan", square]
    words += ["--program", TINY, "--steps", str(steps), "--workers_per_node", "2", "--port", str(port)]
    words += ["--state", str(folder / "state"), "--options", f"--plan-ahead off --replan off {options}"]
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-c", "from torchx.cli.main import main; main()", *words],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def journal_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "state" / "coordinator" / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]


@needs_torchx
@pytest.mark.slow
def test_a_whole_run_on_this_machine(tmp_path: Path, square: str) -> None:
    # The second time all steps are made, and agents are sent away: they would wait for ten minutes.
    for _ in range(2):
        torchx = torchx_run(tmp_path, square, 20)
        _, said = torchx.communicate(timeout=_PATIENCE)
        assert torchx.returncode == 0, said
        assert "SUCCEEDED" in said
    losses = [line["told"]["loss"] for line in journal_of(tmp_path) if "told" in line]
    assert losses == pytest.approx(train_alone(TINY, 2, 4, 20).losses, rel=1e-9)


@needs_torchx
@pytest.mark.slow
def test_torchx_is_killed_and_its_roles_end_in_order(tmp_path: Path, square: str) -> None:
    torchx = torchx_run(tmp_path, square, 1_000_000, f"--end-with-parent --checkpoint {tmp_path}/kept")
    journal = tmp_path / "state" / "coordinator" / "journal.jsonl"
    deadline = time.monotonic() + _PATIENCE
    while not (journal.exists() and '"told"' in journal.read_text()):
        assert torchx.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    torchx.kill()
    torchx.communicate()
    while processes_of(tmp_path / "state"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ended = journal_of(tmp_path)[-1]["ended"]
    made = sum("told" in line for line in journal_of(tmp_path))
    assert ended["error"] == "terminated"
    assert ended["checkpoint"] == [str(tmp_path / "kept" / f"step-{made:08d}"), made]
