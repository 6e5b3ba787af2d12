"""The machine itself: system, cores, memory, files, clock, names. Standard library only."""

import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from recycle_runtime.doctor.findings import Finding

_MIB, _GIB = 1 << 20, 1 << 30
_ENOUGH_FILES = 4096
"""A worker of a large job has a few hundred connections, a coordinator one for each process."""
_ENOUGH_SHARED = 64 * _MIB
"""Default shared memory of a container, in bytes; torch's loading processes pass tensors through it."""


def machine() -> list[Finding]:
    """Everything that can be known without torch."""
    return [
        Finding("system", f"{platform.platform()}, {platform.machine()}"),
        Finding("python", f"{platform.python_version()} ({sys.executable})"),
        _cores(),
        _memory(),
        _shared_memory(),
        _temporary_files(),
        _open_files(),
        _clock(),
        _host_name(),
        _loopback(),
    ]


def _cores() -> Finding:
    usable, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    found = f"{usable}" if usable == all_of_them else f"{usable} of {all_of_them}"
    quota = _first_line("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        share = int(quota[0]) / int(quota[1])
        found += f", limited to {share:.1f} by the control group"
    return Finding("cores", f"{found}, load {os.getloadavg()[0]:.1f}")


def _memory() -> Finding:
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = f"{size / _GIB:.1f} GiB"
    limit = _first_line("/sys/fs/cgroup/memory.max")
    if limit.isdigit() and int(limit) < size:
        found += f", limited to {int(limit) / _GIB:.1f} GiB by the control group"
    return Finding("memory", found)


def _shared_memory() -> Finding:
    subject = "shared memory"
    try:
        size = shutil.disk_usage("/dev/shm").total
    except OSError:
        return Finding(subject, "no /dev/shm", "mount one: workers on one machine share memory through it")
    small = size <= _ENOUGH_SHARED
    advice = "give a container more, as with `docker run --shm-size 8g` or `--ipc=host`" if small else ""
    return Finding(subject, f"{size / _MIB:.0f} MiB in /dev/shm", advice)


def _temporary_files() -> Finding:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    advice = "a job keeps its state and sockets there: free some, or set TMPDIR" if free < 256 * _MIB else ""
    return Finding("temporary files", f"{folder}, {free / _GIB:.1f} GiB free", advice)


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = hard != resource.RLIM_INFINITY and hard < _ENOUGH_FILES
    advice = f"raise it to {_ENOUGH_FILES} or more for large jobs (`ulimit -Hn`, LimitNOFILE)" if few else ""
    return Finding("open files", f"{_limit(soft)}, can be raised to {_limit(hard)}", advice)


def _limit(number: int) -> str:
    return "no limit" if number == resource.RLIM_INFINITY else str(number)


def _clock() -> Finding:
    source = _first_line("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    slow = source in ("hpet", "acpi_pm", "jiffies")
    advice = f"reading {source} is slow: measured op times will be too long" if slow else ""
    return Finding("clock", source, advice)


def _host_name() -> Finding:
    name, subject = socket.gethostname(), "host name"
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(name, None)}
    except OSError:
        return Finding(
            subject,
            f"{name}, unknown here",
            "on several nodes name the network interface in GLOO_SOCKET_IFNAME",
        )
    addresses = sorted(found)
    local = all(address.startswith("127.") or address == "::1" for address in addresses)
    advice = "it means this machine alone: on several nodes set GLOO_SOCKET_IFNAME" if local else ""
    return Finding(subject, f"{name} ({', '.join(addresses)})", advice)


def _loopback() -> Finding:
    subject = "loopback"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Finding(subject, reason, "`recycle-run local` talks over 127.0.0.1: allow it")
    return Finding(subject, "works")


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().partition("\n")[0].strip()
    except OSError:
        return ""
