"""Limits of the system, open files and ports in a range, and how many connections there are."""

import resource

from recycle_runtime.cli.output import UsageError, UserError
from recycle_runtime.options.run import RELAY_FROM

_BESIDE = 128
"""Files of a process beside its connections."""


def allow_connections(processes: int, most: int | None = None, *, relay: bool = False) -> None:
    """Raise the limit of open files for a coordinator of so many worker processes, or say that it is too low.

    Each has a connection, and another to the store; a third one may be on its way. Where agents relay they
    need none, until an agent is lost: then those of its node do, and there are as many nodes at most.
    """
    wanted = 3 * processes + _BESIDE
    needed = processes + _BESIDE if relay else wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = hard if most is None else most
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(
            f"this process may open {hard} files, and a job of {processes} worker processes takes {needed}: "
            "raise the limit (`ulimit -Hn`, LimitNOFILE= of systemd)"
        )
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def relays(relay: bool | None, processes: int) -> bool:
    """True if agents speak for so many worker processes."""
    return processes >= RELAY_FROM if relay is None else relay


def check_ports(text: str | None, given_out: tuple[int, int] | None) -> None:
    """UserError if the system, which gives out these, could give a worker one that is not asked for."""
    if text is None:
        return
    first, _, last = text.partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 1 << 16):
        raise UsageError(f"--ports must be like 30000-31000, got {text!r}")
    if given_out is None:
        raise UserError(f"--ports {text}: this system does not say which ports it gives out")
    least, largest = given_out
    if least < int(first) or largest > int(last):
        raise UserError(
            f"--ports {text}: workers listen on ports that the system gives out, here {least}-{largest}; "
            f"hold it to yours as root with `sysctl -w net.ipv4.ip_local_port_range='{first} {last}'`, in a "
            "pod with securityContext.sysctls"
        )
