"""Cost of signing and counting every message, and of encryption; `python -m bench.records`.

Messages of several sizes are written and read on one thread: whole, the records alone around as many bytes,
and TLS alone around these. Then connections to a server on another thread, with and without TLS, and what two
workers do to prove the token to each other. Microseconds of CPU, best of several rounds, both ends together.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from recycle_runtime.protocol import mutual_proof
from recycle_runtime.protocol.access import Access
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.framing import FramingSession, new_nonce, new_token
from recycle_runtime.protocol.messages.agents import Heartbeat
from recycle_runtime.protocol.messages.generations import BundleData
from recycle_runtime.protocol.messages.store import StoreSet
from recycle_runtime.protocol.messages.wire import Message
from recycle_runtime.protocol.records import RecordReader, RecordWriter, record_key
from recycle_runtime.protocol.server import Connection, Server
from recycle_runtime.protocol.tls import Certificate, client_tunnel, make_certificate

ROUNDS = 7
CONNECTIONS = 100
CASES: tuple[tuple[str, Message, int], ...] = (
    ("heartbeat", Heartbeat(), 5_000),
    ("store entry of 200 bytes", StoreSet("group/7/0/1", "a" * 200), 5_000),
    ("bundle of 1 MiB", BundleData(0, b"\x5a" * (1 << 20)), 10),
)


def whole(message: Message) -> Callable[[], None]:
    """A message from one end to the other, as it is."""
    token, servers, clients = new_token(), new_nonce(), new_nonce()
    client = FramingSession(token, "client", servers, clients)
    server = FramingSession(token, "server", servers, clients)

    def once() -> None:
        # A copy: what was said a moment ago is not made into a text again.
        assert server.unframe(bytearray(client.frame(replace(message)))) is not None

    return once


def records(size: int) -> Callable[[], None]:
    """The records alone, around a text of this size."""
    key = record_key(new_token(), "client", 1, new_nonce(), new_nonce())
    writer, reader, text = RecordWriter(key), RecordReader(key), b"a" * size

    def once() -> None:
        assert reader.read(bytearray(writer.write(text))) is not None

    return once


def tunnel(certificate: Certificate, size: int) -> Callable[[], None]:
    """TLS alone, around as many bytes."""
    server, client, data = certificate.tunnel(), client_tunnel(), b"a" * size
    server.hear(client.begin())
    client.hear(server.owed())
    server.hear(client.owed())

    def once() -> None:
        assert len(server.hear(client.say(data))) == size

    return once


def proofs() -> Callable[[], None]:
    """Of two workers that meet."""
    tokens = [new_token()]

    def once() -> None:
        nonces = mutual_proof.new_pair_nonce(), mutual_proof.new_pair_nonce()
        ends = [mutual_proof.meeting("group 0 1", end, nonces[end], nonces[1 - end]) for end in (0, 1)]
        offers = [mutual_proof.offer(tokens, end, ends[end]) for end in (0, 1)]
        for end in (0, 1):
            assert mutual_proof.common_key(tokens, end, ends[end], offers[1 - end]) is not None

    return once


class Nobody:
    """Hears nothing."""

    def message(self, connection: Connection, message: Message) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def tick(self) -> None: ...


def connections(certificate: Certificate | None) -> tuple[float, float]:
    """Microseconds of a connection that both ends have proved; of both ends, and on average of the server."""
    token = new_token()
    server = Server("127.0.0.1", 0, token, Nobody(), certificate=certificate)
    access, over = Access(token, tls=certificate is not None), threading.Event()
    served = 0.0

    def serve() -> None:
        nonlocal served
        while not over.is_set():
            server.turn(0.05)
        served = time.thread_time()

    thread = threading.Thread(target=serve)
    thread.start()
    found = microseconds(lambda: Channel("127.0.0.1", server.port, access).close(), CONNECTIONS)
    over.set()
    thread.join()
    server.close()
    return found, 1e6 * served / (ROUNDS * CONNECTIONS)


def microseconds(once: Callable[[], None], times: int) -> float:
    """Of CPU, for one."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            once()
        best = min(best, time.process_time() - began)
    return 1e6 * best / times


def main() -> None:
    certificate = make_certificate()
    print(f"{'':<28}{'message':>12}{'records':>12}{'TLS':>12}   microseconds of CPU, both ends")
    for name, message, times in CASES:
        size = len(FramingSession(new_token(), "client", "", "").frame(message)) - 20
        parts = (whole(message), records(size), tunnel(certificate, size))
        print(f"{name:<28}" + "".join(f"{microseconds(part, times):>12.1f}" for part in parts))
    (plain, plain_server), (encrypted, server) = connections(None), connections(certificate)
    print(f"{'connection':<28}{plain:>12.0f}{'':>12}{encrypted:>12.0f}   without and with TLS")
    print(f"{'  of which the server':<28}{plain_server:>12.0f}{'':>12}{server:>12.0f}")
    print(f"{'two workers meet':<28}{microseconds(proofs(), 1_000):>12.1f}{'':>12}{'':>12}   proofs alone")


if __name__ == "__main__":
    main()
