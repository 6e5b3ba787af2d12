"""What the processes of a job need to find each other: an address and a token. Standard library only."""

import argparse
import os

from recycle_runtime.cli.errors import Refused
from recycle_runtime.protocol.framing import TOKEN

_SHORTEST = 16


def add_address_arguments(parser: argparse.ArgumentParser, option: str, does: str) -> None:
    parser.add_argument(option, required=True, metavar="HOST:PORT", help=does)


def address(option: str, text: str, least: int = 1) -> tuple[str, int]:
    """A host and a port as the user wrote them."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not least <= int(port) < 1 << 16:
        raise Refused(f"{option} must be like 10.0.0.1:29500, got {text!r}")
    return host.strip("[]"), int(port)


def token() -> str:
    """The job's secret."""
    found = os.environ.get(TOKEN, "")
    if len(found) < _SHORTEST:
        raise Refused(
            f"{TOKEN} must be set to the job's token, a secret of {_SHORTEST} letters or more that all its "
            "processes share"
        )
    return found
