"""Options: how the processes of a job find each other, and the token that they share."""

import os

from recycle_runtime.cli.output import UsageError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.protocol.framing import TOKEN

_SHORTEST = 16


def add_address_argument(parser: Arguments, option: str, does: str) -> None:
    """A host and a port."""
    parser.add_argument(option, required=True, metavar="HOST:PORT", help=does)


def address(option: str, text: str, least: int = 1) -> tuple[str, int]:
    """A host and a port as the user wrote them."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not least <= int(port) < 1 << 16:
        raise UsageError(f"{option} must be like 10.0.0.1:29500, got {text!r}")
    return host.strip("[]"), int(port)


def token() -> str:
    """The job's secret."""
    found = os.environ.get(TOKEN, "")
    if len(found) < _SHORTEST:
        raise UsageError(
            f"{TOKEN} must be set to the job's token, a secret of {_SHORTEST} letters or more that all its "
            "processes share"
        )
    return found
