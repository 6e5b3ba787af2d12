"""Prints the news of a job, a line of JSON each, until the job is over; runs where its coordinator does."""

import json
import os
import sys
import time

from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import WireError
from recycle_runtime.protocol.framing import TOKEN
from recycle_runtime.protocol.messages.observers import JobEnded, Observe
from recycle_runtime.protocol.messages.wire import to_fields


def main(host: str, port: int, first: int) -> None:
    channel = Channel(host, port, os.environ[TOKEN])
    channel.send(Observe(first))
    is_over = False
    while not is_over:
        try:
            message = channel.receive()
        except WireError:
            return
        is_over = isinstance(message, JobEnded)
        print(json.dumps([time.monotonic(), to_fields(message)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
