"""Ends of the search for a coordinator, and reasons to wait on."""

import socket
import threading
from collections.abc import Callable

import pytest

from recycle_runtime.agent.search import Search
from recycle_runtime.launcher.engines import NodePlace
from recycle_runtime.launcher.node import _listen_beside  # pyright: ignore[reportPrivateUsage]
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import MismatchError, RefusalError, UnreachableError, WireError
from recycle_runtime.protocol.framing import Challenge, frame_handshake, new_nonce, new_token
from recycle_runtime.protocol.messages.wire import VERSION

SILENT, REFUSED = WireError("does not answer yet"), RefusalError("refuses")


@pytest.mark.parametrize("error", [SILENT, UnreachableError("nobody")])
def test_whoever_may_yet_answer_is_waited_for(error: WireError, caplog: pytest.LogCaptureFixture) -> None:
    search = Search(600.0, 1000.0)
    assert all(search.failed(error, 1000.0 + now) == 0.1 for now in range(0, 601, 10))
    assert search.failed(error, 1601.0) is None
    assert [record.getMessage() for record in caplog.records] == [f"{error}; tries again for 590 s"]


def test_whoever_refuses_is_not(caplog: pytest.LogCaptureFixture) -> None:
    search = Search(600.0, 0.0)
    assert search.failed(SILENT, 100.0) == 0.1
    assert all(search.failed(REFUSED, now) == 1.0 for now in (200.0, 215.0, 230.0))
    assert search.failed(REFUSED, 231.0) is None
    assert [record.getMessage() for record in caplog.records] == [
        "does not answer yet; tries again for 500 s",
        "refuses; tries again for 30 s",
    ]
    assert Search(600.0, 0.0).failed(MismatchError("no use"), 0.0) is None


def test_one_that_refuses_now_and_then_is_waited_for() -> None:
    """It restarts again and again."""
    search = Search(600.0, 0.0)
    for now in range(0, 600, 20):
        assert search.failed(REFUSED if now % 40 else SILENT, float(now)) is not None


def hang_up(sock: socket.socket) -> None:
    """As what has just ended."""


def hang_up_on_the_answer(sock: socket.socket) -> None:
    sock.sendall(frame_handshake(Challenge(VERSION, new_nonce())))
    sock.recv(4096)


def speak_otherwise(sock: socket.socket) -> None:
    sock.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(
    ("does", "is_refusal", "words"),
    [
        (hang_up, False, "closed the connection|is gone"),
        (hang_up_on_the_answer, True, "does not accept the token"),
        (speak_otherwise, True, "is not the coordinator of a job"),
    ],
)
def test_only_an_answer_is_a_refusal(
    does: Callable[[socket.socket], None], is_refusal: bool, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with listener.accept()[0] as sock:
                does(sock)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(WireError, match=words) as caught:
            Channel("127.0.0.1", int(listener.getsockname()[1]), new_token())
        thread.join()
    assert isinstance(caught.value, RefusalError) is is_refusal


def test_a_node_may_start_before_the_name_of_the_first_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def unknown(host: str, *others: object, **more: object) -> object:
        if host == "first":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *others, **more)  # pyright: ignore

    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        port = int(taken.getsockname()[1])
        with _listen_beside("127.0.0.1", NodePlace(1, "first", port, 2)) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
