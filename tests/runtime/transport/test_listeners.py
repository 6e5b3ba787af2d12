"""Workers that cannot reach each other are told where and why, in place of gloo's words."""

import socket
import struct
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from recycle_runtime.transport import listeners
from recycle_runtime.transport.gloo import meet_neighbours
from recycle_runtime.transport.listeners import (
    Listener,
    listener_of,
    read_listeners,
    unreachable,
)
from recycle_runtime.transport.sparse_group import make_group

SHORT = timedelta(seconds=10)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "_PATIENCE", 0.0)


def closed_port() -> int:
    """One at which nobody listens: the connection is refused, as by a firewall that rejects."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def packed(host: str, address: bytes) -> bytes:
    name = host.encode()
    return struct.pack("@Q", len(name)) + name + struct.pack("@Q", len(address)) + address


def test_addresses_of_both_families() -> None:
    four = struct.pack("@H", socket.AF_INET) + struct.pack(">H", 41234) + bytes([10, 0, 0, 7]) + bytes(128)
    six = struct.pack("@H", socket.AF_INET6) + struct.pack(">HI", 80, 0) + bytes([*bytes(15), 1]) + bytes(128)
    assert str(listener_of(packed("node7", four))) == "node7 at 10.0.0.7:41234"
    assert str(listener_of(packed("", six))) == "a host without a name at [::1]:80"


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 40, bytes(200), b"\x02" + bytes(7) + b"\xff\xfe"])
def test_other_bytes_are_nobodys_address(data: bytes) -> None:
    assert listener_of(data) is None
    assert read_listeners([data]) == []


def test_those_that_accept_are_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        good = Listener("here", "127.0.0.1", int(sock.getsockname()[1]))
        assert unreachable([good]) is None
        port = closed_port()
        why = unreachable([good, Listener("there", "127.0.0.1", port)])
    assert why is not None
    assert f"a worker on there at 127.0.0.1:{port} cannot be reached: connection refused. Workers" in why
    assert "net.ipv4.ip_local_port_range" in why


class Astray(dist.Store):  # pyright: ignore[reportUntypedBaseClass]
    """Tells everybody that everybody else listens at another port."""

    def __init__(self, table: dist.Store, port: int) -> None:
        super().__init__()
        self._table: Any = table
        self._port = port

    def set(self, key: str, value: str | bytes) -> None:
        self._table.set(key, value)

    def get(self, key: str) -> bytes:
        value: bytes = self._table.get(key)
        if listener_of(value) is None:
            return value
        changed = bytearray(value)
        at = len(value) - struct.unpack_from("@Q", value, 8 + value[0])[0] + 2
        changed[at : at + 2] = struct.pack(">H", self._port)
        return bytes(changed)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._table.wait(keys)

    def check(self, keys: list[str]) -> bool:
        return self._table.check(keys)


def test_gloo_writes_addresses_as_they_are_read_here() -> None:
    table = dist.HashStore()
    groups: list[Any] = []

    def join(rank: int) -> None:
        groups.append(make_group(table, rank, 2, SHORT))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(groups) == 2
    found = read_listeners([table.get("0/0"), table.get("0/1")])
    assert [each.host for each in found] == [socket.gethostname()] * 2
    assert unreachable(found) is None
    assert all(isinstance(listener_of(table.get(key)), Listener) for key in ("0/0", "0/1"))


def test_a_refused_connection_is_told_with_host_and_port() -> None:
    # Of two, the one with the higher address connects: here each takes the other's for the lower.
    table, port = dist.HashStore(), 1
    errors: list[RuntimeError] = []

    def join(rank: int) -> None:
        try:
            meet_neighbours(Astray(table, port), rank, 2, SHORT)
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2
    assert all(f":{port} cannot be reached: connection refused" in str(error) for error in errors)
