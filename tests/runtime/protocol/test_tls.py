"""Connections over TLS: nobody in between can read them or take part, and both ends have to want it."""

import logging
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.protocol import tls
from recycle_runtime.protocol.access import Access
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import MismatchError, ProtocolError, WireError
from recycle_runtime.protocol.messages.store import StoreSet
from recycle_runtime.protocol.tls import Certificate, CertificateError, client_tunnel, make_certificate
from tests.runtime.protocol.test_strangers import TOKEN, Running, everything, stranger

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made by openssl")
pytestmark = needs_openssl
ACCESS = Access(TOKEN, tls=True)
SECRET = "nobody may read this"


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return make_certificate()


@pytest.fixture(scope="module")
def running(certificate: Certificate) -> Generator[Running]:
    found = Running(certificate=certificate)
    yield found
    found.end()


class Between:
    """A relay that hands on what each end sends, through functions of its own."""

    def __init__(self, port: int, carry: Callable[[socket.socket, socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._to, self._carry = port, carry
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._to))
            with client, server, suppress(OSError):
                self._carry(client, server)

    def close(self) -> None:
        self._listener.close()


def pump(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes]) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(change(data))
        target.shutdown(socket.SHUT_WR)


def both_ways(
    client: socket.socket,
    server: socket.socket,
    up: Callable[[bytes], bytes],
    down: Callable[[bytes], bytes],
) -> None:
    thread = threading.Thread(target=pump, args=(server, client, down), daemon=True)
    thread.start()
    pump(client, server, up)
    thread.join(30)


def asked(port: int, key: str = SECRET) -> StoreSet:
    client = Channel("127.0.0.1", port, ACCESS)
    client.send(StoreSet(key, "1"))
    answer = client.receive()
    client.close()
    assert isinstance(answer, StoreSet)
    return answer


def test_a_relay_sees_nothing_of_what_is_said(running: Running) -> None:
    seen: list[bytes] = []

    def noted(data: bytes) -> bytes:
        seen.append(data)
        return data

    relay = Between(running.port, lambda client, server: both_ways(client, server, noted, noted))
    assert asked(relay.port) == StoreSet(SECRET, "1")
    relay.close()
    everything_seen = b"".join(seen)
    assert b"nonce" in everything_seen
    assert b"proof" not in everything_seen and SECRET.encode() not in everything_seen


def in_the_middle(own: Certificate) -> Callable[[socket.socket, socket.socket], None]:
    """Speaks TLS to both ends, with a certificate of its own, and reads and hands on what they say."""

    def carry(client: socket.socket, server: socket.socket) -> None:
        client.sendall(server.recv(1 << 16))
        near, far = own.tunnel(), client_tunnel()
        server.sendall(far.begin())
        early = b""
        for tunnel, sock in ((far, server), (near, client)):
            while not tunnel.is_ready:
                early += tunnel.hear(sock.recv(1 << 16))
                sock.sendall(tunnel.owed())
        # A client says more as soon as it has keys.
        server.sendall(far.say(early))
        both_ways(
            client, server, lambda data: far.say(near.hear(data)), lambda data: near.say(far.hear(data))
        )

    return carry


def test_a_man_in_the_middle_is_found(
    running: Running, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    """His certificate is another one, and the proof of the token covers it."""
    middle = Between(running.port, in_the_middle(make_certificate()))
    with pytest.raises(WireError, match=r"does not accept the token, or somebody stands between"):
        Channel("127.0.0.1", middle.port, ACCESS)
    assert any("does not know the token" in record.getMessage() for record in caplog.records)
    middle.close()
    # The certificate it is: with the server's key he would not have been found.
    thief = Between(running.port, in_the_middle(certificate))
    assert asked(thief.port) == StoreSet(SECRET, "1")
    thief.close()


def test_long_messages_while_another_thread_sends(running: Running) -> None:
    client = Channel("127.0.0.1", running.port, ACCESS)
    keys = ["x" * (1 << 18), "", *(str(number) for number in range(200)), "y" * (1 << 17)]

    def say() -> None:
        for key in keys:
            client.send(StoreSet(key, "1"))

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    assert [client.receive() for _ in keys] == [StoreSet(key, "1") for key in keys]
    thread.join(30)
    client.close()


def test_a_server_that_is_started_again_has_another_certificate(certificate: Certificate) -> None:
    running = Running(certificate=certificate)
    port = running.port
    assert asked(port, "a") == StoreSet("a", "1")
    running.end()
    again = Running(certificate=make_certificate())
    assert asked(again.port, "b") == StoreSet("b", "1")
    again.end()


def test_one_end_alone_wants_tls(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Both say so at once."""
    caplog.set_level(logging.WARNING)
    plain = Running()
    with pytest.raises(MismatchError, match="coordinator was started with --tls: start this process with"):
        Channel("127.0.0.1", running.port, TOKEN)
    with pytest.raises(MismatchError, match="coordinator was started without --tls, and this process with"):
        Channel("127.0.0.1", plain.port, ACCESS)
    running.check()
    plain.check()
    plain.end()
    said = [record.getMessage() for record in caplog.records]
    assert any("it refuses, and says 'it was started without --tls'" in line for line in said)
    assert any("it refuses, and says 'it was started with --tls'" in line for line in said)


@settings(max_examples=20)
@given(data=st.binary(max_size=300))
def test_strangers_who_speak_something_like_tls(running: Running, data: bytes) -> None:
    with stranger(running) as sock, suppress(OSError):
        sock.sendall(b"\x16" + data)
        sock.shutdown(socket.SHUT_WR)
        everything(sock)
    running.check()


def test_what_is_kept_of_a_stranger_has_a_limit(certificate: Certificate) -> None:
    tunnel = certificate.tunnel()
    with pytest.raises(ProtocolError):
        for _ in range(100):
            # Parts of a first message that never ends.
            tunnel.hear(b"\x16\x03\x01\x04\x00\x01\x00\xff\xff" + bytes(0x400 - 4))


def test_a_tunnel_needs_tls_1_3(certificate: Certificate) -> None:
    import ssl

    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ProtocolError, match="does not speak TLS as it should"):
        certificate.tunnel().hear(tls.Tunnel(old).begin())


def test_a_certificate_of_ones_own(tmp_path: Path) -> None:
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=mine -days 9"
    files = tmp_path / "certificate", tmp_path / "key"
    made = [*words.split(), "-nodes", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(["openssl", *made], check=True, capture_output=True)
    running = Running(certificate=Certificate(*files))
    running.check()
    running.end()
    files[0].write_text("no certificate")
    with pytest.raises(CertificateError, match=f"{files[0]} and {files[1]}: "):
        Certificate(*files)
    with pytest.raises(CertificateError, match=r"[Nn]o such file"):
        Certificate(tmp_path / "missing", files[1])


def test_without_openssl_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CertificateError, match="not here: install it, or give --tls-certificate FILE and"):
        make_certificate()
    broken = tmp_path / "openssl"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    broken.chmod(0o700)
    with pytest.raises(CertificateError, match="makes no certificate: it is broken"):
        make_certificate()


def test_the_key_is_in_no_file_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    modes: list[int] = []

    class Looking(Certificate):
        def __init__(self, certificate: Path, key: Path) -> None:
            modes.extend(path.stat().st_mode & 0o777 for path in (key.parent, key))
            super().__init__(certificate, key)

    monkeypatch.setattr(tls, "Certificate", Looking)
    make_certificate()
    assert modes == [0o700, 0o600]
    assert list(tmp_path.iterdir()) == []
