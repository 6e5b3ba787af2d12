"""What it costs to sign and count every message; `python -m bench.records`.

Messages of several sizes are written and read on one thread: whole, and then the records alone around as
many bytes. Microseconds of CPU a message, best of several rounds, both ends together.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from recycle_runtime.protocol.framing import Session, new_nonce, new_token
from recycle_runtime.protocol.messages import BundleData, Heartbeat, Message, StoreSet
from recycle_runtime.protocol.records import RecordReader, RecordWriter, record_key

ROUNDS = 7
CASES: tuple[tuple[str, Message, int], ...] = (
    ("heartbeat", Heartbeat(), 5_000),
    ("store entry of 200 bytes", StoreSet("group/7/0/1", "a" * 200), 5_000),
    ("bundle of 1 MiB", BundleData(0, b"\x5a" * (1 << 20)), 10),
)


def whole(message: Message) -> Callable[[], None]:
    """A message from one end to the other, as it is."""
    token, servers, clients = new_token(), new_nonce(), new_nonce()
    client = Session(token, "client", servers, clients)
    server = Session(token, "server", servers, clients)

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
    print(f"{'':<28}{'message':>12}{'records':>12}   microseconds of CPU, both ends")
    for name, message, times in CASES:
        size = len(Session(new_token(), "client", "", "").frame(message)) - 20
        row = microseconds(whole(message), times), microseconds(records(size), times)
        print(f"{name:<28}{row[0]:>12.1f}{row[1]:>12.1f}")


if __name__ == "__main__":
    main()
