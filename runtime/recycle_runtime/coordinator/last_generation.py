"""The last generation of a journal: who trained, with which plan, and where the run had begun.

Needs no torch.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from recycle_runtime.coordinator.events import BeginGeneration, Note
from recycle_runtime.coordinator.journal import Field, JournalError, Lines
from recycle_runtime.coordinator.participant import Memory
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment, PlanBook
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.codec import Natural
from recycle_runtime.protocol.messages.generations import (
    AtBoundary,
    Began,
    BundleRequest,
    CaughtUp,
    Failed,
    FaultInjected,
    GroupBroken,
    Holding,
    Join,
    LeftGroup,
    Reach,
    ShardsHeld,
    Trace,
)
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEnded


class RunningPlan(NamedTuple):
    """As `plan_book.Assignment`, but for the period."""

    bundle: int
    plan: int
    roles: dict[Worker, Worker]
    standbys: int
    on_purpose: bool

    def assignment(self, book: PlanBook, cells: Mapping[Worker, Worker]) -> Assignment:
        """Of the cells that its workers have; of one that is not named, the one it is called after."""
        roles = {cells.get(worker, worker): role for worker, role in self.roles.items()}
        period = book.bundles[self.bundle].plans[self.plan].period
        return Assignment(self.bundle, self.plan, roles, self.standbys, period, self.on_purpose)


class Setup(NamedTuple):
    """Program, seed and plans that every worker process must have, as the first of them had them."""

    who: str
    """That process, as messages name it."""
    program: str
    """As `LeftGroup` has it."""
    seed: int
    plans: str
    """The digest of the bundle that the job was started with."""


class Remembered(NamedTuple):
    """The last generation of a journal."""

    generation: int
    step: int
    """Step at which that generation began."""
    places: tuple[Worker, ...]
    """Workers that train in it."""
    plan: RunningPlan | None = None
    """The plan that they run, if it was written down."""
    cells: Mapping[Worker, Worker] = MappingProxyType({})
    """Cells of workers in the grid of their plan, if not those of their names."""
    joiners: Mapping[Worker, Worker] = MappingProxyType({})
    """Workers that were given state while the others trained, and may have it by now; with their cells."""
    pids: Mapping[Member, int] = MappingProxyType({})
    """Process ids of all of these, if they were written down."""
    job: str = ""
    """The digest of the job, if it was written down."""
    setup: Setup | None = None
    """The setup of its workers, if it was written down."""
    restore: str | None = None
    """The checkpoint that the run begins with, if not every process has read it yet."""
    first_step: int = 0
    first_item: int = 0
    ended: JobEnded | None = None
    """The end of the job, if it has ended."""
    fewer: Mapping[Worker, int] = MappingProxyType({})
    """Processes of workers that had lost tensor-parallel ranks."""

    def members(self, worker: Worker, tensor: int) -> list[Member]:
        """The processes of a worker, in a job with so many ranks."""
        return [Member(worker, rank) for rank in range(0, tensor, tensor // self.fewer.get(worker, tensor))]


_Place = tuple[Natural, Natural]
MEMORY = (
    Memory(
        "the generation that runs: workers, plan, cells, joiners, processes",
        said=(Join, LeftGroup),
        journal={
            "generation": Field(Natural, needs=("step", "places")),
            "step": Field(Natural),
            "places": Field(tuple[_Place, ...]),
            "plan": Field(tuple[Natural, Natural, Natural, Natural], needs=("roles",)),
            "roles": Field(tuple[_Place, ...], one_for_each="places"),
            "cells": Field(tuple[_Place, ...], one_for_each="places"),
            "joiners": Field(tuple[tuple[_Place, _Place], ...]),
            "pids": Field(tuple[tuple[Member, Natural], ...]),
            "job": Field(str),
            "setup": Field(Setup | None),
            "fewer": Field(tuple[tuple[_Place, Natural], ...]),
        },
        again="`join` on each new connection; `left_group` as the answer to `leave`, which is said again if "
        "a change was under way",
    ),
    Memory(
        "the checkpoint or copy that the run begins with, until all have read it",
        journal={"begins": Field(tuple[str | None, Natural, Natural]), "restored": Field(bool)},
    ),
    Memory(
        "who has begun with the generation",
        said=(Began,),
        again="`join` says whether a process trains, and whether it saves",
    ),
    Memory(
        "who holds which shards",
        said=(ShardsHeld,),
        again="as the answer to `recall`, and in reports",
    ),
    Memory(
        "where workers stop",
        said=(Holding, AtBoundary),
        again="as the answer to `hold`, which whoever returns is told",
    ),
    Memory(
        "joiners that have caught up",
        said=(CaughtUp,),
        again="their reports tell: if a joiner returns, all leave and report",
    ),
    Memory(
        "broken groups",
        said=(GroupBroken,),
        again="`join` says that the process does not train",
    ),
    Memory(
        "failed workers",
        said=(Failed,),
        again="the process ends, and its agent says so in `agent_join` too",
    ),
    Memory(
        "requests for plans",
        said=(BundleRequest,),
        again="after `leave` and `go`: who asks does not train",
    ),
    Memory("hosts that do not answer", said=(Reach,), again="at short intervals"),
    Memory("injected faults, and traces", said=(FaultInjected, Trace), lost="they are for observers"),
    Memory("the end of the job", journal={"ended": Field(JobEnded)}),
)


def written_down(
    order: BeginGeneration, job: str, setup: Setup | None, pids: Iterable[tuple[Member, int]]
) -> Note:
    """The line of a generation, before the order is sent to any process."""
    assignment, workers = order.assignment, sorted(order.cells)
    cells = [order.cells[worker] for worker in workers]
    line = Note(
        {
            "generation": order.number,
            "step": order.step,
            "places": workers,
            "job": job,
            "setup": setup,
            "plan": [assignment.bundle, assignment.plan, assignment.standbys, int(assignment.on_purpose)],
            "roles": [assignment.roles[cell] for cell in cells],
            "cells": None if cells == workers else cells,
            "joiners": sorted(order.joiners.items()) or None,
            "pids": list(pids),
            "fewer": sorted(order.fewer.items()) or None,
        }
    )
    return Note({name: value for name, value in line.fields.items() if value is not None})


def end_written_down(end: JobEnded) -> Note:
    """The last line."""
    return Note({"ended": end})


def remembered(lines: Lines) -> Remembered | None:
    """None when there is nothing to go on from."""
    found: Remembered | None = None
    begins: tuple[str | None, int, int] = (None, 0, 0)
    for fields in (line.fields for line in lines.all):
        if "generation" in fields:
            places = fields["places"]
            found = Remembered(
                fields["generation"],
                fields["step"],
                places,
                _plan(places, fields),
                dict(zip(places, fields["cells"], strict=True)) if "cells" in fields else {},
                dict(fields.get("joiners", ())),
                dict(fields.get("pids", ())),
                fields.get("job", ""),
                fields.get("setup"),
                fewer=dict(fields.get("fewer", ())),
            )
        elif "begins" in fields:
            begins = fields["begins"]
        elif "restored" in fields:
            begins = (None, begins[1], begins[2])
    if found is None:
        return None
    restore, step, item = begins
    return found._replace(
        restore=restore,
        first_step=step,
        first_item=item,
        ended=next(iter(lines.values("ended")), None),
    )


def _plan(places: tuple[Worker, ...], fields: Mapping[str, Any]) -> RunningPlan | None:
    if "plan" not in fields:
        return None
    bundle, plan, standbys, on_purpose = fields["plan"]
    roles = dict(zip(places, fields["roles"], strict=True))
    return RunningPlan(bundle, plan, roles, standbys, bool(on_purpose))


class OtherJobError(JournalError):
    """A folder has the journal of another job, in one sentence."""


def check_job(folder: Path, remembered: Remembered | None, job: str) -> None:
    """OtherJobError unless the journal in this folder is of this job; older ones do not say it."""
    if remembered is None or remembered.job in ("", job):
        return
    how = "is under way" if remembered.ended is None else "has ended"
    raise OtherJobError(
        f"{folder}: another job {how} there, not that of this plan (job {remembered.job} there, {job} here): "
        "use another --state for this one"
    )


def check_fits(lines: Lines, state: Remembered, book: PlanBook) -> None:
    """JournalError unless the last generation can be one of these plans."""
    if (wrong := _misfit(state, book)) is not None:
        line = max(line.number for line in lines.all if "generation" in line.fields)
        raise JournalError(f"{lines.path}:{line}: damaged, or of another job: {wrong}")


def _misfit(state: Remembered, book: PlanBook) -> str | None:
    """Something that cannot be true, in a few words."""
    names = (*state.places, *state.joiners)
    if strange := [name for name in names if not book.has(name)]:
        return f"the job has no worker {worker_text(strange[0])}"
    if not state.places or len({*names}) < len(names):
        return "it has no workers, or one of them twice"
    if state.plan is None:
        return None if book.assign(state.places) is not None else "there is no plan for its workers"
    number, plan = state.plan.bundle, state.plan.plan
    if number >= len(book.bundles) or plan >= len(book.bundles[number].plans):
        return f"there is no plan {plan} of bundle {number}"
    here = book.with_bundle(number)
    cells = [state.cells.get(name, name) for name in state.places] + list(state.joiners.values())
    if not all(map(here.has, cells)) or len({*cells}) < len(cells):
        return "its workers are where its plan has none"
    roles = state.plan.roles.values()
    if not all(map(here.has, roles)) or len({*roles}) < len(roles):
        return "its workers have parts that its plan does not have"
    return None if all(map(here.has, here.standby)) else "workers stand by that its plan does not have"
