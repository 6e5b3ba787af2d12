"""Prints the news of a job, a line of JSON each, until the job is over; runs where its coordinator does."""

import json
import os
import sys
import time

from recycle_runtime.protocol.framing import TOKEN, Channel, WireError


def main(host: str, port: int) -> None:
    channel = Channel(host, port, os.environ[TOKEN])
    channel.send({"type": "observe", "next": 0})
    kind = ""
    while kind != "ended":
        try:
            message = channel.receive()
        except WireError:
            return
        kind = message["type"]
        print(json.dumps(message | {"at": time.monotonic()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
