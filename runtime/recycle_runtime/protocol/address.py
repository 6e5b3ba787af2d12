"""Address of the coordinator: as it was said at the start, or as a file says now. Needs no torch.

A coordinator that is started again may be elsewhere. So whoever knocks asks each time: a name is looked up
with every connection, and the file in which the coordinator leaves its address, if there is one, is read
again. Where several coordinators take turns, it also says the term of the one that is there: see
`coordinator.leadership`.
"""

import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import Protocol

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ANYWHERE = ("", "0.0.0.0", "::")
_LABEL = re.compile(r"\w([\w-]{0,61}\w)?")
_TERM = " term "
_LONGEST_TERM = 16
_FAR_AWAY = ("192.0.2.1", 9)
"""No packet is sent there: the system is only asked from where it would be."""


class Knows(Protocol):
    """Options of a process that looks for the coordinator."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def address_file(self) -> str | None: ...


def parse_address(text: str, least: int = 1) -> tuple[str, int] | None:
    """`10.0.0.1:29500`, `node7:29500` or `[fd00::1]:29500`; None if it is nothing like that."""
    host, _, port = text.partition(_TERM)[0].strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not least <= int(port) < 1 << 16:
        return None
    return host.strip("[]"), int(port)


def is_host(text: str) -> bool:
    """True if it may be a name or an address of a machine, without a port; nothing is looked up."""
    if ":" in text:
        try:
            ipaddress.ip_address(text.strip("[]").partition("%")[0])
        except ValueError:
            return False
        return True
    labels = text.removesuffix(".").split(".")
    return all(_LABEL.fullmatch(label) for label in labels)


def is_known_address(host: str) -> bool:
    """True if this machine finds an address for it, now."""
    try:
        return bool(socket.getaddrinfo(host.strip("[]"), None))
    except (OSError, UnicodeError):
        return False


def address_now(options: Knows) -> tuple[str, int]:
    """By the file, if there is one that can be read."""
    if options.address_file is None:
        return options.host, options.port
    try:
        found = parse_address(Path(options.address_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        found = None
    return found or (options.host, options.port)


def port_range(path: Path = _RANGE) -> tuple[int, int] | None:
    """Ports that the system gives to processes that ask for none, the first and the last of them."""
    try:
        first, last = map(int, path.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    return first, last


class FollowedAddress:
    """By the file, which is read only when it is another one: many processes of a node ask again and again.

    Where the folder is on another machine, what the system knows of the file is as old as the last time that
    somebody on this node has opened it, which the agent does.
    """

    def __init__(self, options: Knows) -> None:
        self._options, self._found = options, address_now(options)
        self._looks: tuple[int, int] | None = None

    def __call__(self) -> tuple[str, int]:
        try:
            status = os.stat(self._options.address_file or "")
        except OSError:
            return self._found
        if (looks := (status.st_ino, status.st_mtime_ns)) != self._looks:
            self._looks, self._found = looks, address_now(self._options)
        return self._found


def term_now(options: Knows) -> int:
    """Of the coordinator that is there; 0 if nobody says."""
    if options.address_file is None:
        return 0
    try:
        term = Path(options.address_file).read_text(encoding="utf-8").partition(_TERM)[2].strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(term) if term.isascii() and term.isdigit() and len(term) < _LONGEST_TERM else 0


def published(host: str, port: int, term: int = 0) -> str:
    """An address at which others reach who listens here: never one that means every interface."""
    if host in _ANYWHERE:
        host = _own_address()
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{where}{_TERM}{term}\n" if term else where


def own_address_towards(host: str, port: int) -> str | None:
    """From which this machine would reach that one; None if it would not."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _own_address() -> str:
    """From which this machine would reach others; its name, or loopback, if it has no network."""
    if (found := own_address_towards(*_FAR_AWAY)) is not None:
        return found
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
    return found if not ipaddress.ip_address(found).is_unspecified else "127.0.0.1"
