"""Addresses on which the coordinator of `recycle-run node` listens, and the warning if that is everywhere."""

import socket

import pytest

from recycle_runtime.launcher.node import listen

EVERYWHERE = "the coordinator listens at all addresses of this node"
Found = list[tuple[socket.AddressFamily, int, int, str, tuple[str, int]]]


def knows(patch: pytest.MonkeyPatch, address: str | None) -> None:
    """This machine finds this address for every name, or none."""

    def getaddrinfo(host: str, port: int, **_: object) -> Found:
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))]

    patch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        (None, "first is not known here"),
        ("127.0.1.1", "first means 127.0.1.1 here"),
        ("192.0.2.1", "first (192.0.2.1) is no address of this node"),
    ],
)
def test_a_node_that_does_not_know_its_own_address_listens_everywhere_and_says_so(
    address: str | None, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    knows(monkeypatch, address)
    with listen("first", 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
    assert caplog.messages == [f"{why}: {EVERYWHERE}"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_that_was_asked_for_is_no_reason_to_listen_elsewhere(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    with listen(host, 0) as listener:
        assert listener.getsockname()[0] in ("127.0.0.1", "::1")
    assert caplog.messages == []
