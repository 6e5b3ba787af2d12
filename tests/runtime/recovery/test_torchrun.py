"""`recycle-run node` under torch's own torchrun: a static rendezvous trains, an elastic one is refused."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone

pytestmark = pytest.mark.slow

_STEPS = 20
_PATIENCE = 300.0


def torchrun(folder: Path, bundle: str, *options: str) -> "subprocess.Popen[str]":
    """One node of two."""
    words = ["--nproc-per-node", "1", "--no-python", "recycle-run", "node", bundle, "--program", TINY]
    words += ["--steps", str(_STEPS), "--workers-per-node", "2", "--state", str(folder / "state")]
    words += ["--plan-ahead", "off", "--replan", "off"]
    command = folder / "recycle-run"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m recycle_runtime.cli "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RECYCLE_TOKEN": "a token of the tests alone",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *options, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(node: "subprocess.Popen[str]") -> None:
    """Whatever is left: torchrun ends its process, and that all others."""
    if node.poll() is None:
        node.terminate()
    node.communicate()


def test_a_static_rendezvous(tmp_path: Path, square: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    nodes = [torchrun(tmp_path, square, *where, "--node-rank", str(rank)) for rank in range(2)]
    try:
        for node in nodes:
            said, _ = node.communicate(timeout=_PATIENCE)
            assert node.returncode == 0, said
    finally:
        for node in nodes:
            end(node)
    journal = (tmp_path / "state" / "coordinator" / "journal.jsonl").read_text().splitlines()
    losses = [line["told"]["loss"] for line in map(json.loads, journal) if "told" in line]
    assert losses == pytest.approx(train_alone(TINY, 2, 4, _STEPS).losses, rel=1e-9)


@pytest.mark.parametrize(
    "options", ["--standalone", "--nnodes 1 --rdzv-backend c10d --rdzv-endpoint localhost:0"]
)
def test_an_elastic_rendezvous_is_refused_with_the_reason(tmp_path: Path, square: str, options: str) -> None:
    node = torchrun(tmp_path, square, *options.split())
    try:
        said, _ = node.communicate(timeout=_PATIENCE)
    finally:
        end(node)
    assert node.returncode != 0
    assert "torchrun restarts every node when one fails or returns, unless its rendezvous is static" in said
    assert not (tmp_path / "state").exists()
