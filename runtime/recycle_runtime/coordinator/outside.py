"""Surroundings of a coordinator: time, connections, slow disks, planners.

A simulated world puts others in their place. Needs no torch.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from recycle_runtime.coordinator.file_thread import FileThread, RealFileThread
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.kept_plans import keep_plans
from recycle_runtime.coordinator.plans import PlanFiles, PlansOnDemand
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.access import Token
from recycle_runtime.protocol.server import Served, Server


class Serves(Protocol):
    """The connections of all clients."""

    @property
    def port(self) -> int: ...

    def turn(self, seconds: float) -> None:
        """Wait for something at most so long, and deal with it."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """Makers of each of them."""

    clock: Callable[[], float] = time.monotonic
    serve: Callable[[str, int, Token, Served], Serves] = Server
    file_thread: Callable[[str], FileThread] = RealFileThread
    plans: Callable[[PlanFiles, str, Path], PlansOnDemand] = PlansOnDemand
    journal: Callable[[Path], Journal] = Journal
    read_bundle: Callable[[str], Bundle] = Bundle.read
    keep_plans: Callable[[str, Path], None] = keep_plans
    reading: Callable[[], AbstractContextManager[None]] = nullcontext
    """Open while a checkpoint is read, before anybody is served."""
