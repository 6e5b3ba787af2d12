"""One node of a job: an agent and a coordinator, both started again when they die.

The coordinator of the first node begins. Those of other nodes stand by, and take over when it is gone, if all
nodes share the folder of its state (see `coordinator.leadership`). Where they do not, they wait for ever.

However this process ends, the others do too: see `lifeline`. An engine that ends a job may tell all its
processes at once. The coordinator does not hear that, only this process, which passes it on: twice would
mean that the job is to end without a checkpoint.
"""

import errno
import ipaddress
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from recycle_runtime.coordinator.leadership import newest_term
from recycle_runtime.launcher.engines import NodePlace
from recycle_runtime.launcher.kept_process import KeptProcess
from recycle_runtime.protocol.address import own_address_towards
from recycle_runtime.protocol.lifeline import Lifeline

_BACKLOG = 1024
_LOOK_EVERY = 0.05
_AGENT_SECONDS = 5.0
_EVERYWHERE = "0.0.0.0"
_OPEN = "%s: the coordinator listens at all addresses of this node"
_log = logging.getLogger(__name__)


class Node:
    """Its processes."""

    def __init__(
        self, place: NodePlace, coordinator: Sequence[str], agent: Sequence[str], shared: Path | None = None
    ) -> None:
        """The command lines lack where the coordinator is; `shared` is the folder in which coordinators take
        over from each other, if they may. OSError if the port of the first one is taken."""
        self._place, self._shared = place, shared
        self._lifeline = Lifeline()
        self._listener: socket.socket | None = None
        self._coordinator: KeptProcess | None = None
        if place.is_first or shared is not None:
            # It belongs to this process: nobody else can have the port while the coordinator restarts.
            own = place.host if place.is_first else own_address_towards(place.host, place.port)
            if own is None:
                own = _EVERYWHERE
                _log.warning(_OPEN, f"{place.host}, the first node, cannot be looked up or reached yet")
            listener = self._listener = _listen_beside(own, place)
            port = listener.getsockname()[1]
            words = [*coordinator, "--listen", _address(own, port), "--listener", str(listener.fileno())]
            words += ["--advertise", own]
            words += [] if shared is None else ["--candidate", str(place.node)]
            self._coordinator = KeptProcess(
                "coordinator",
                lambda: words,
                {},
                self._lifeline,
                keeps=(listener.fileno(),),
                ignores=(signal.SIGTERM, signal.SIGHUP),
            )
        where = ["--coordinator", _address(place.host, place.port)]
        self._agent = KeptProcess("agent", lambda: [*agent[:2], *where, *agent[2:]], {}, self._lifeline)
        self._is_told = False

    def run(self, stop: Callable[[], int | None]) -> int:
        """Until the job is over; the exit code. `stop` gives the signal that asks for an end, once one has.

        SupervisorError when a process dies again and again.
        """
        while True:
            if (number := stop()) is not None and not self._is_told:
                self._tell(number)
            status = self._look()
            if status is not None:
                return 128 + number if number is not None and status != 0 else status
            time.sleep(_LOOK_EVERY)

    def end(self) -> None:
        """Whatever still runs is ended; after the end of the job, that is nothing."""
        self._lifeline.cut()
        if self._listener is not None:
            self._listener.close()
        for kept in (self._agent, self._coordinator):
            if kept is not None:
                kept.process.wait()

    def _look(self) -> int | None:
        """The exit status of this node, once it has one."""
        agent = self._status(self._agent)
        if self._coordinator is None:
            return agent
        status = self._status(self._coordinator)
        if status is not None:
            self._agent.end(_AGENT_SECONDS)
            return status
        # An agent that was not sent away has said what is wrong with this node. One that was knows that the
        # job is over, and there is nothing to stand by for.
        return None if agent == 0 and self._leads() else agent

    def _status(self, kept: KeptProcess) -> int | None:
        """Nobody starts again once the end is wanted."""
        if not self._is_told:
            return kept.look()
        status = kept.process.poll()
        return status if status is None or status >= 0 else 128 - status

    def _tell(self, number: int) -> None:
        """The node that coordinates ends the job, with a last checkpoint if it keeps any; others leave it."""
        self._is_told = True
        if self._coordinator is not None and self._leads():
            self._coordinator.pass_on(number)
            return
        if self._coordinator is not None:
            self._coordinator.process.kill()
            self._coordinator.process.wait()
            self._coordinator = None
        self._agent.process.send_signal(signal.SIGTERM)

    def _leads(self) -> bool:
        """True if the coordinator of this node does, for all that the folder says."""
        if self._shared is None:
            return True
        try:
            term = newest_term(self._shared)
        except OSError:
            term = None
        return self._place.is_first if term is None else term.candidate == self._place.node


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen_beside(host: str, place: NodePlace) -> socket.socket:
    """At the job's port, so that a firewall lets it through; only one of several nodes on a machine can."""
    if place.is_first:
        return listen(host, place.port)
    try:
        is_free = all(where[0] != host for *_, where in socket.getaddrinfo(place.host, place.port))
    except socket.gaierror:
        # A name that is not known yet, such as that of a pod that has not started: the agent waits for it.
        is_free = True
    try:
        return listen(host, place.port if is_free else 0)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    return listen(host, 0)


def listen(host: str, port: int) -> socket.socket:
    """Only at the address by which others know this node; everywhere, if this node knows no such address,
    which is said."""
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        return _listen_everywhere(port, f"{host} is not known here")
    found = str(where[0])
    if ipaddress.ip_address(found.partition("%")[0]).is_loopback and host not in (found, "localhost"):
        # A name of this machine that means something else to others.
        return _listen_everywhere(port, f"{host} means {found} here")
    try:
        return socket.create_server((found, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    # A name that is translated on the way, such as that of a service.
    return _listen_everywhere(port, f"{host} ({found}) is no address of this node")


def _listen_everywhere(port: int, why: str) -> socket.socket:
    listener = socket.create_server((_EVERYWHERE, port), backlog=_BACKLOG)
    _log.warning(_OPEN, why)
    return listener
