"""Options: how the processes of a job find each other."""

import time
from pathlib import Path

from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.cli.parser import Arguments
from recycle_runtime.protocol.address import is_host, parse_address

_LOOK_EVERY = 0.2


def add_address_argument(parser: Arguments, option: str, does: str) -> None:
    """A host and a port."""
    parser.add_argument(option, required=True, metavar="HOST:PORT", help=does)


def address(option: str, text: str, least: int = 1) -> tuple[str, int]:
    """A host and a port as the user wrote them."""
    found = parse_address(text, least)
    if found is None:
        raise UsageError(f"{option} must be like 10.0.0.1:29500, got {text!r}")
    return found


def host(option: str, text: str) -> str:
    """A host as the user wrote it, without a port."""
    if not is_host(text):
        raise UsageError(f"{option} must be a host without a port, like 10.0.0.1 or node7, got {text!r}")
    return text.strip("[]")


def address_or_file(option: str, text: str, seconds: float) -> tuple[tuple[str, int], str | None]:
    """The same, or the file in which the coordinator leaves its address, which is waited for so long."""
    if "/" not in text:
        return address(option, text), None
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = parse_address(Path(text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            found = None
        if found is not None:
            return found, text
        if time.monotonic() > deadline:
            raise UserError(f"{option} {text}: no coordinator has left its address there in {seconds:g} s")
        time.sleep(_LOOK_EVERY)
