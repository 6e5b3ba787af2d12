"""Files of tokens: nobody else may read them, and tokens are exchanged while connections are there."""

import os
from pathlib import Path

import pytest

from recycle_runtime.protocol.access import MOST_TOKENS, Access, TokenFileError, read_tokens
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.messages.store import StoreSet
from tests.runtime.protocol.test_strangers import Running

OLD, NEW = "o" * 32, "n" * 32


def written(path: Path, *lines: str, mode: int = 0o600) -> Path:
    """Put in place whole, as an operator should."""
    aside = path.with_suffix(".new")
    aside.write_text("".join(f"{line}\n" for line in lines))
    aside.chmod(mode)
    aside.replace(path)
    return path


def test_lines_are_tokens(tmp_path: Path) -> None:
    assert read_tokens(written(tmp_path / "token", NEW, "", f"  {OLD} ")) == (NEW, OLD)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_others_may_not_read_or_write_it(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "token", NEW, mode=mode)
    with pytest.raises(TokenFileError, match=f"others may read or change the token; run `chmod 600 {path}`"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "one on each line"),
        (("short",), "16 letters or more"),
        ((NEW,) * (MOST_TOKENS + 1), "one on each line"),
        (("é" * 32,), "other bytes"),
        (("x" * 5000,), "one on each line"),
    ],
)
def test_what_is_no_token(tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    with pytest.raises(TokenFileError, match=words):
        read_tokens(written(tmp_path / "token", *lines))


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, words in (
        ("pipe", "not a file"),
        ("missing", "[Nn]o such file"),
        (".", "directory|not a file"),
    ):
        with pytest.raises(TokenFileError, match=words):
            read_tokens(tmp_path / name)


def test_while_a_file_cannot_be_used_the_last_tokens_stand(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "token", OLD)
    access = Access(token_file=str(path))
    written(path, NEW, mode=0o644)
    assert access.tokens() == access.tokens() == (OLD,)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: others may read or change the token; run `chmod 600 {path}`; what it held before is used"
    ]
    path.chmod(0o600)
    assert access.tokens() == (NEW,)


def test_a_job_gets_another_token_while_it_runs(tmp_path: Path) -> None:
    """Every order in which the coordinator and others may see the change, and what was there before stays."""
    servers, clients = tmp_path / "server", tmp_path / "client"
    for path in (servers, clients):
        written(path, OLD)
    running = Running(Access(token_file=str(servers)))
    access = Access(token_file=str(clients))

    def talks(channel: Channel) -> bool:
        channel.send(StoreSet("a", "1"))
        return channel.receive() == StoreSet("a", "1")

    first = Channel("127.0.0.1", running.port, access)
    changes = [
        ((OLD,), (NEW, OLD)),
        ((NEW, OLD), (OLD,)),
        ((NEW, OLD), (NEW,)),
        ((NEW,), (NEW, OLD)),
        ((NEW,), (OLD, NEW)),
        ((NEW,), (NEW,)),
    ]
    for server, client in changes:
        written(servers, *server)
        written(clients, *client)
        channel = Channel("127.0.0.1", running.port, access)
        assert talks(channel) and talks(first)
        channel.close()
    with pytest.raises(WireError, match="does not accept the token"):
        Channel("127.0.0.1", running.port, OLD)
    # Made with a token that nobody accepts any more.
    assert talks(first)
    first.close()
    running.end()
