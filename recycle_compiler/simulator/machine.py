"""Runs iterations of a plan that is wired up, from any clocks of its workers, with any times."""

import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from recycle_compiler.compiled import compile_function
from recycle_compiler.ir.ops import Column
from recycle_compiler.simulator.errors import Blocked, DeadlockError
from recycle_compiler.simulator.kernel import GATHER, NEVER, run_iteration
from recycle_compiler.simulator.streams import EngineStreams
from recycle_compiler.simulator.wiring import Wiring

COMPILE_FROM = 300_000
"""Steps to run, over all iterations, from which loading numba pays."""
LOADED_FROM = 20_000
"""The same, where it has been loaded already."""


class Iteration(NamedTuple):
    """Record of one iteration."""

    clock: Column
    """Time at which each worker was done."""
    origin: Column
    """The worker whose start that moment goes back to, without any slack in between."""
    start: Column
    """Of every step; sends take no time and have none."""
    end: Column


class SimulatedMachine:
    """The plan, and the loop that suits its size."""

    def __init__(self, streams: EngineStreams, wiring: Wiring, iterations: int) -> None:
        self.streams, self.wiring = streams, wiring
        work = len(wiring) * iterations
        self._compiled = work >= (LOADED_FROM if "numba" in sys.modules else COMPILE_FROM)
        self._loop = _compiled_loop() if self._compiled else run_iteration
        fixed = (wiring.kind, wiring.source, wiring.gathering, wiring.bounds)
        self._kind, self._source, self._gathering, self._bounds = map(self._given, fixed)
        self._members, self._roster = self._given(wiring.members), self._given(wiring.roster)

    def run(self, clock: Column, duration: Column, lag: Column, iteration: int = 0) -> Iteration:
        """From these clocks on; times for every step, in ticks. DeadlockError if not all reach their end."""
        workers, steps, meetings = len(clock), len(self.wiring), len(self.wiring.members) // 2
        all_workers = np.arange(workers)
        numbers = (clock, all_workers, self.wiring.bounds[:-1])
        clocks, origin, cursor = (self._given(column.copy()) for column in numbers)
        start, end, sent = (self._given(np.full(steps, NEVER)) for _ in range(3))
        sender, waiter = (self._given(np.zeros(steps, dtype=np.int64)) for _ in range(2))
        arrived, meeting, leader = (self._given(np.zeros(meetings, dtype=np.int64)) for _ in range(3))
        unfinished = self._loop(
            self._kind,
            self._source,
            self._given(duration),
            self._given(lag),
            self._gathering,
            self._bounds,
            self._members,
            self._roster,
            clocks,
            origin,
            cursor,
            start,
            end,
            sent,
            sender,
            waiter,
            arrived,
            meeting,
            leader,
            self._given(all_workers),
        )
        if unfinished:
            raise DeadlockError(tuple(self._blocked(np.asarray(cursor), np.asarray(arrived))), iteration)
        found = (np.asarray(column, dtype=np.int64) for column in (clocks, origin, start, end))
        return Iteration(*found)

    def _given(self, column: Column) -> Any:
        """As the loop wants it."""
        return column.astype(np.int64) if self._compiled else column.tolist()

    def _blocked(self, cursor: Column, arrived: Column) -> list[Blocked]:
        bounds = self.wiring.bounds
        stuck = np.flatnonzero(cursor < bounds[1:]).tolist()
        found: list[Blocked] = []
        for worker in stuck:
            step = int(cursor[worker])
            row = int(self.wiring.row[step])
            name, position = self.streams.place(row)
            waits_for = self._waits_for(step, arrived)
            found.append(Blocked(name, position, self.streams.text(row), waits_for))
        return found

    def _waits_for(self, step: int, arrived: Column) -> str:
        wiring = self.wiring
        if wiring.kind[step] == GATHER:
            group = int(wiring.gathering[step])
            first, after = wiring.members[2 * group : 2 * group + 2].tolist()
            return f"{after - first - int(arrived[group])} of {after - first} workers"
        if wiring.source[step] == NEVER:
            return "a message that no worker sends"
        worker, position = self.streams.place(int(wiring.row[wiring.source[step]]))
        return f"the send of {worker} at {position}"


@cache
def _compiled_loop() -> Any:
    return compile_function(run_iteration)
