"""Machines of a trace to workers of the job: who has which place, who is spare, what a change means.

Machines get places in order: one machine carries the workers of so many neighbouring places, or, where a
worker has more GPUs than a machine, several machines carry one worker. Machines beyond that are spare; if
there are too few, the last places are down from the start. A machine that fails takes its workers with it.
If there is a spare one, it takes the place at the same moment: its workers then fail and return in one
change, for what the old machine held is gone. One that returns gets its old place if that is free, else the
free place where it helps most: the one whose stage has fewest live workers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from recycle_compiler.fleet.course import Start
from recycle_compiler.fleet.policy import Change, Worker
from recycle_compiler.fleet.traces.trace import FleetEvent, FleetTrace
from recycle_compiler.ir.units import plural
from recycle_runtime.plan.node_layout import fill_nodes, placement_order

LAYOUTS = ("pipeline", "stage")
"""Workers that are neighbours: the stages of one pipeline, or the peers of one stage."""


class LayoutError(ValueError):
    """Machines and workers do not go together: one sentence says why."""


class MachinePlaces(NamedTuple):
    """Places for machines."""

    places: tuple[tuple[Worker, ...], ...]
    """The workers on each machine."""
    per_worker: int
    """Machines that carry one worker together; 1 where a machine has room for a whole one."""
    gpus_each: int
    vacant: frozenset[Worker] = frozenset()
    """Cells of the grid that no machine carries."""


def lay_out(
    pipelines: int,
    stages: int,
    tensor: int,
    gpus_per_node: int | None = None,
    by: str = "pipeline",
    vacant: int = 0,
) -> MachinePlaces:
    """Places for machines with so many GPUs, by default a worker each; the last cells may be vacant."""
    cells = [(pipeline, stage) for pipeline in range(pipelines) for stage in range(stages)]
    empty = frozenset(cells[len(cells) - vacant :])
    workers = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    workers = [worker for worker in workers if worker not in empty]
    if by == "pipeline":
        workers = placement_order(workers)
    gpus = gpus_per_node or tensor
    if gpus % tensor and tensor % gpus:
        raise LayoutError(
            f"a worker has {plural(tensor, 'GPU')} and a machine {gpus}: one must be a multiple of the other"
        )
    each, per_worker = max(1, gpus // tensor), max(1, tensor // gpus)
    carried = fill_nodes(workers, each)
    return MachinePlaces(
        tuple(place for place in carried for _ in range(per_worker)), per_worker, gpus, empty
    )


class _Move(NamedTuple):
    """A change without all those who are down, which are many more than those who come and go."""

    at: float
    failed: frozenset[Worker]
    returned: frozenset[Worker]
    spare: int
    from_spares: frozenset[Worker]
    spare_machines: int


class Strength(NamedTuple):
    """Part of the fleet that is up, until the next such moment."""

    at: float
    workers: int
    """Of the job."""
    spares: int
    """Machines without a place in the job."""


@dataclass(frozen=True)
class Fleet:
    """A trace on a layout: how the job begins, and, one after the other whenever asked for, its changes."""

    trace: FleetTrace
    layout: MachinePlaces
    used: int | None = None
    """Places that machines may take, the first ones; None: all. The workers of the others are down."""

    @property
    def start(self) -> Start:
        return self._course[0]

    def changes(self) -> Iterator[Change]:
        """Changes after time 0 that concern the job or its spares."""
        (down, _), moves = self._course
        for at, failed, returned, spare, from_spares, _ in moves:
            down = (down | failed) - returned
            yield Change(at, failed, returned, down, spare, from_spares)

    @cached_property
    def strengths(self) -> tuple[Strength, ...]:
        """From 0 to the end of the trace."""
        workers = len({worker for place in self.layout.places for worker in place})
        live = workers - len(self.start.down - self.layout.vacant)
        found = [Strength(0.0, live, self._spares_at_start)]
        for move in self._course[1]:
            if move.at >= self.trace.span:
                break
            live += len(move.returned - move.failed) - len(move.failed - move.returned)
            found.append(Strength(move.at, live, move.spare_machines))
        return tuple(found)

    @property
    def workers(self) -> int:
        """Workers of the job that machines may carry."""
        return len({worker for place in self.layout.places[: self.used] for worker in place})

    @property
    def spares(self) -> int:
        """Machines that there are at most beyond those that the job has places for."""
        return max(strength.spares for strength in self.strengths)

    @cached_property
    def mean_time_between_failures(self) -> float:
        """Seconds between two moments at which workers of the job fail; infinite where none does."""
        moments = sum(1 for move in self._course[1] if move.failed and move.at < self.trace.span)
        return self.trace.span / moments if moments else float("inf")

    @cached_property
    def _course(self) -> tuple[Start, list[_Move]]:
        """Place of each machine over the trace, computed once for all policies."""
        assignment = self._assignment()
        start = Start(self.layout.vacant | assignment.down, assignment.spare)
        moments = (assignment.move(at, events) for at, events in self.trace.moments() if at > 0)
        return start, [move for move in moments if move is not None]

    @cached_property
    def _spares_at_start(self) -> int:
        return self._assignment().spare_machines

    def _assignment(self) -> "_MachineAssignment":
        """As they are taken when the job begins."""
        layout, trace = self.layout, self.trace
        names = list(trace.nodes)
        if trace.by_worker:
            # Every worker is a machine of its own then, with the worker's name.
            workers = sorted({worker for place in layout.places for worker in place})
            layout = MachinePlaces(tuple((worker,) for worker in workers), 1, layout.gpus_each)
            names = [f"{pipeline}:{stage}" for pipeline, stage in workers]
        elif trace.whole:
            names += [f"unnamed {number}" for number in range(len(names), len(layout.places))]
        names += [f"spare {number}" for number in range(trace.spares)]
        assignment = _MachineAssignment(layout, self.used)
        assignment.move(0.0, [FleetEvent(0.0, name, added=True) for name in names])
        assignment.move(0.0, [event for event in trace.events if event.at == 0])
        return assignment


class _MachineAssignment:
    """Assignment of machines to places."""

    def __init__(self, layout: MachinePlaces, used: int | None = None) -> None:
        self._layout = layout
        self._occupancy: list[int | None] = [None] * len(layout.places)
        """Number of each place's assignment, None if free: a new machine in a place has a new number."""
        self._assignments = 0
        self._free = set(range(len(layout.places))[:used])
        self._place_of: dict[str, int] = {}
        self._home: dict[str, int] = {}
        """Last place of each machine."""
        self._spares: dict[str, None] = {}
        self._needs: dict[Worker, list[int]] = {}
        for number, place in enumerate(layout.places):
            for worker in place:
                self._needs.setdefault(worker, []).append(number)
        self.down: set[Worker] = set(self._needs)
        self._live = [0] * (1 + max(stage for _, stage in self._needs))

    @property
    def spare_machines(self) -> int:
        return len(self._spares)

    @property
    def spare(self) -> int:
        """In workers."""
        return len(self._spares) * len(self._layout.places[0]) // self._layout.per_worker

    def move(self, at: float, events: list[FleetEvent]) -> _Move | None:
        """Change that these events mean for the job; None if they mean none."""
        spare = self.spare_machines
        before: dict[int, int | None] = {}
        by_spares: set[int] = set()
        for event in events:
            if event.added:
                self._arrive(event.node, before)
            else:
                self._leave(event.node, before)
        while self._free and self._spares:
            node = next(iter(self._spares))
            del self._spares[node]
            place = self._best_free()
            by_spares.add(place)
            self._assign(node, place, before)
        touched = {worker for place in before for worker in self._layout.places[place]}
        changed = {worker for worker in touched if self._differs(worker, before)}
        failed = frozenset(worker for worker in changed if self._was_live(worker, before))
        returned = frozenset(worker for worker in changed if worker not in self.down)
        if not failed and not returned and spare == self.spare_machines:
            return None
        replaced = frozenset(worker for place in by_spares for worker in self._layout.places[place])
        return _Move(at, failed, returned, self.spare, returned & replaced, self.spare_machines)

    def _arrive(self, node: str, before: dict[int, int | None]) -> None:
        home = self._home.get(node)
        if home in self._free:
            self._assign(node, home, before)
        elif self._free:
            self._assign(node, self._best_free(), before)
        else:
            self._spares[node] = None

    def _leave(self, node: str, before: dict[int, int | None]) -> None:
        if node in self._spares:
            del self._spares[node]
            return
        place = self._place_of.pop(node)
        before.setdefault(place, self._occupancy[place])
        self._occupancy[place] = None
        self._free.add(place)
        for worker in self._layout.places[place]:
            if worker not in self.down:
                self.down.add(worker)
                self._live[worker[1]] -= 1

    def _assign(self, node: str, place: int, before: dict[int, int | None]) -> None:
        before.setdefault(place, self._occupancy[place])
        self._assignments += 1
        self._occupancy[place] = self._assignments
        self._place_of[node] = self._home[node] = place
        self._free.remove(place)
        for worker in self._layout.places[place]:
            if all(self._occupancy[needed] is not None for needed in self._needs[worker]):
                self.down.remove(worker)
                self._live[worker[1]] += 1

    def _best_free(self) -> int:
        """Free place on the stage with the fewest live workers; the first of equals."""
        return min(
            self._free,
            key=lambda place: (min(self._live[stage] for _, stage in self._layout.places[place]), place),
        )

    def _differs(self, worker: Worker, before: dict[int, int | None]) -> bool:
        return any(
            before.get(place, self._occupancy[place]) != self._occupancy[place]
            for place in self._needs[worker]
        )

    def _was_live(self, worker: Worker, before: dict[int, int | None]) -> bool:
        return all(before.get(place, self._occupancy[place]) is not None for place in self._needs[worker])
