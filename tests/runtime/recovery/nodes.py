"""Nodes to run processes on: process groups on loopback, or namespaces with cables that can be pulled.

A node of namespaces has an address, process numbers and a loopback device of its own. The cables of all nodes
end at a switch, a bridge in one more namespace; the machine's own network is left alone. When a node's first
process is killed the kernel kills the rest of it, and when the switch is, nothing is left of the network.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol

_PREFIX = "10.77.0."
_HOLDER = ["sleep", "infinity"]


class Node(Protocol):
    """A place of processes that go together."""

    name: str
    address: str

    def start(self, command: Sequence[str], environment: dict[str, str], out: IO[bytes] | int) -> None: ...

    def kill(self) -> None:
        """With everything that runs there."""
        ...

    def processes(self) -> list[int]: ...


class LoopbackNode:
    """A process and its children, in a group of their own."""

    def __init__(self, name: str) -> None:
        self.name, self.address = name, "127.0.0.1"
        self._leaders: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environment: dict[str, str], out: IO[bytes] | int) -> None:
        self._leaders.append(_started(command, environment, out))

    def kill(self) -> None:
        for leader in self._leaders:
            if _members_of_group(leader.pid):
                os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
        self._leaders.clear()

    def processes(self) -> list[int]:
        return [pid for leader in self._leaders for pid in _members_of_group(leader.pid)]


class NamespaceNode:
    """A network, process numbers and a host name of its own; `port` is the other end of its cable."""

    def __init__(self, name: str, address: str, port: str) -> None:
        self.name, self.address, self.port = name, address, port
        spaces = ["--net", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        self._holder = _started(["unshare", *spaces, *_HOLDER], {}, subprocess.DEVNULL)
        self.first = _child_of(self._holder.pid)
        self._within(["hostname", name])
        self._within(["ip", "link", "set", "lo", "up"])
        self._entered: list[subprocess.Popen[bytes]] = []

    def wire(self) -> None:
        """The cable is there."""
        self._within(["ip", "address", "add", f"{self.address}/24", "dev", "eth0"])
        self._within(["ip", "link", "set", "eth0", "up"])

    def reject(self, other: "NamespaceNode") -> None:
        """Connections from here to there fail at once, as with a firewall that says so."""
        self._within(["ip", "route", "add", "prohibit", f"{other.address}/32"])

    def start(self, command: Sequence[str], environment: dict[str, str], out: IO[bytes] | int) -> None:
        entry = ["nsenter", "--target", str(self.first), "--net", "--pid", "--uts", "--mount", "--"]
        wired = {"GLOO_SOCKET_IFNAME": "eth0"} | environment
        self._entered.append(_started([*entry, *command], wired, out))

    def kill(self) -> None:
        self._holder.kill()
        self._holder.wait()
        for entered in self._entered:
            entered.wait()

    def processes(self) -> list[int]:
        mine = os.stat(f"/proc/{self.first}/ns/pid").st_ino if Path(f"/proc/{self.first}").exists() else -1
        return [
            pid for pid in _all_processes() if pid != self.first and _space_of(pid) == mine and _lives(pid)
        ]

    def _within(self, command: list[str]) -> None:
        _run(["nsenter", "--target", str(self.first), "--net", "--uts", *command])


class Switch:
    """A bridge, and the cables that end there."""

    def __init__(self) -> None:
        self._holder = _started(
            ["unshare", "--net", "--fork", "--kill-child", *_HOLDER], {}, subprocess.DEVNULL
        )
        self._first = _child_of(self._holder.pid)
        self._nodes: list[NamespaceNode] = []
        self._within("link add bridge0 type bridge")
        self._within("link set bridge0 up")

    def add(self, name: str) -> NamespaceNode:
        """One more node."""
        number = len(self._nodes) + 1
        node = NamespaceNode(name, f"{_PREFIX}{number}", f"port{number}")
        self._nodes.append(node)
        self._within(f"link add {node.port} type veth peer name eth0 netns {node.first}")
        self._within(f"link set {node.port} master bridge0 up")
        node.wire()
        return node

    def pull(self, node: NamespaceNode) -> None:
        """Its cable: nothing gets through, and nobody is told."""
        self._within(f"link set {node.port} down")

    def plug(self, node: NamespaceNode) -> None:
        self._within(f"link set {node.port} up")

    def separate(self, *nodes: NamespaceNode) -> None:
        """These do not reach each other any more, only all other nodes."""
        for node in nodes:
            self._within(f"link set {node.port} type bridge_slave isolated on")

    def join(self, *nodes: NamespaceNode) -> None:
        for node in nodes:
            self._within(f"link set {node.port} type bridge_slave isolated off")

    def remove(self) -> None:
        for node in self._nodes:
            node.kill()
        self._holder.kill()
        self._holder.wait()

    def _within(self, words: str) -> None:
        _run(["nsenter", "--target", str(self._first), "--net", "ip", *words.split()])


def why_no_namespaces() -> str | None:
    """The reason for which nodes cannot be made of namespaces here; None if they can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    switch: Switch | None = None
    try:
        switch = Switch()
        switch.separate(switch.add("probe"))
    except (OSError, subprocess.SubprocessError) as error:
        return f"no network namespaces here: {error}"
    finally:
        if switch is not None:
            switch.remove()
    return None


def _started(
    command: Sequence[str], environment: dict[str, str], out: IO[bytes] | int
) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        list(command),
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def _child_of(pid: int) -> int:
    """The process that another has made in its new namespaces."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == _HOLDER[0]:
                return int(children[0])
        except OSError as error:
            raise OSError(f"unshare was refused: {error}") from None
        time.sleep(0.01)
    raise OSError("unshare was refused")


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _space_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def _members_of_group(group: int) -> list[int]:
    """Those that live."""
    found: list[int] = []
    for pid in _all_processes():
        fields = _status(pid)
        if fields and int(fields[2]) == group and _lives(pid):
            found.append(pid)
    return found


def _lives(pid: int) -> bool:
    """Nobody may be there to bury it."""
    return _status(pid)[:1] not in ([], ["Z"])


def _status(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
