"""Agents that come while the coordinator reads a checkpoint."""

import os
import socket
from pathlib import Path

import pytest

from recycle_runtime.cli.main import main
from recycle_runtime.coordinator import checkpoint_files
from recycle_runtime.coordinator.startup_listener import kept_waiting
from recycle_runtime.protocol.address import parse_address
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.framing import TOKEN, new_token
from recycle_runtime.protocol.messages.agents import AgentJoin, Heartbeat
from recycle_runtime.protocol.server import Served, Server
from recycle_runtime.state.names import CheckpointError


def test_whoever_comes_is_let_in_and_comes_again() -> None:
    token = new_token()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])

        def serve(served: Served) -> Server:
            return Server("127.0.0.1", port, token, served, listener=os.dup(listener.fileno()))

        with kept_waiting(serve):
            agent = Channel("127.0.0.1", port, token)
            agent.send(AgentJoin("node", 2, ()))
            agent.send(Heartbeat())
            with pytest.raises(WireError):
                Channel("127.0.0.1", port, new_token())
        with pytest.raises(WireError):
            agent.receive()
        # Whoever serves now has the same address.
        with kept_waiting(serve):
            Channel("127.0.0.1", port, token).close()


def test_an_agent_finds_a_coordinator_that_reads_a_checkpoint(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the address that it leaves before it has read anything; here it finds the checkpoint damaged."""
    token = new_token()
    monkeypatch.setenv(TOKEN, token)
    found: list[Channel] = []

    def beginning(*_: object, **__: object) -> None:
        where = parse_address((tmp_path / "state" / "address").read_text(encoding="utf-8"))
        assert where is not None
        found.append(Channel(*where, token))
        found[0].send(AgentJoin("node", 2, ()))
        raise CheckpointError("it is damaged")

    monkeypatch.setattr(checkpoint_files, "beginning", beginning)
    argv = ["coordinator", square, "--steps", "9", "--listen", "127.0.0.1:0", "--resume"]
    argv += ["--state", str(tmp_path / "state"), "--checkpoint", str(tmp_path / "kept")]
    assert main([*argv, "--plan-ahead", "off", "--replan", "off"]) == 1
    assert capsys.readouterr().err == "recycle-run: error: it is damaged\n"
    with pytest.raises(WireError):
        found[0].receive()
