"""Ports of the processes of a local job: nobody can take the coordinator's place."""

import os
import signal
import socket
import threading
from pathlib import Path

from recycle_runtime.launcher.supervisor import Supervisor
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.observers import ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.recovery.watched import TINY, check, processes_of, run
from tests.runtime.training.alone import train_alone

_LISTENING = "0A"


def listened_at(pids: list[int]) -> set[str]:
    """Addresses, as the kernel's table has them."""
    inodes: set[str] = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


class Stranger:
    """Tries to have a port, again and again."""

    def __init__(self, port: int) -> None:
        self.has_it, self._over = False, threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def _run(self, port: int) -> None:
        while not self._over.wait(0.001):
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    sock.bind(("127.0.0.1", port))
                    sock.listen()
                except OSError:
                    continue
                self.has_it = True
                return

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def test_ports_of_a_local_job(tmp_path: Path, square: str) -> None:
    """All are on the loopback address, not the host's; the coordinator's stays taken while it restarts."""
    folder = tmp_path / "run"
    addresses: set[str] = set()
    strangers: list[Stranger] = []

    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if not isinstance(message, StepRow):
            return
        if strangers:
            # The coordinator is back, or this could not be told.
            strangers[0].end()
            return
        addresses.update(listened_at(processes_of(folder / "state")))
        port = int((folder / "state" / "address").read_text().rpartition(":")[2])
        strangers.append(Stranger(port))
        supervisor.coordinator.process.send_signal(signal.SIGKILL)

    outcome = run(folder, square, TINY, 12, drive=drive)
    assert not strangers[0].has_it
    assert addresses == {"0100007F"}
    plan = Bundle.read(square)
    check(folder, outcome, train_alone(TINY, plan.stages, plan.pipelines * plan.microbatches, 12))
