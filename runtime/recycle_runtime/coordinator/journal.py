"""What a restarted coordinator has to know: one JSON object a line, written before it is acted on.

A line that was cut short by the end of the process is left out; everything before it counts. Whoever goes on
with a journal takes such an end off first, or the next line would be lost with it. While the disk is full,
lines wait in memory, and the job goes on.
"""

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from recycle_runtime.coordinator.events import LastSave
from recycle_runtime.coordinator.neighbour_copies import CompleteCopy
from recycle_runtime.files import reason, write_whole
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.plan_book import Assignment, Fitted, PlanBook
from recycle_runtime.protocol.codec import decode, encode
from recycle_runtime.protocol.messages import Evaluated, JobEnded, JobEvent, Member, Saved, StepRow

FILE = "journal.jsonl"
_AT_RISK = "training continues, and would end if the coordinator did now"
_LOGGER = logging.getLogger(__name__)


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
    """What every worker process must have, as the first of them had it."""

    who: str
    """That process, as messages name it."""
    program: str
    """As `LeftGroup` has it."""
    seed: int
    plans: str
    """The digest of the bundle that the job was started with."""


class Remembered(NamedTuple):
    """The state at the end of a journal."""

    generation: int
    step: int
    """Where that generation began."""
    places: tuple[Worker, ...]
    """Who trains in it."""
    next_row: int
    """The first step that has not been recorded."""
    bundles: tuple[str, ...]
    """Files with plans made on demand."""
    standby: tuple[Worker, ...] = ()
    """Workers that are slow, and should get no micro-batches."""
    made_for: Mapping[int, Fitted] = MappingProxyType({})
    """Of those bundles, the ones that are for certain workers alone."""
    fitted: int | None = None
    """Which of these should be used."""
    restore: str | None = None
    """The checkpoint that the run begins with, if not every process has read it yet."""
    first_step: int = 0
    first_item: int = 0
    plan: RunningPlan | None = None
    """What they run, if it was written down."""
    cells: Mapping[Worker, Worker] = MappingProxyType({})
    """Where they stand in the grid of their plan, if not where their names say."""
    joiners: Mapping[Worker, Worker] = MappingProxyType({})
    """Who was given its state while they trained, and may have it by now; with their cells."""
    move: str | None = None
    """The layout to which layers were on their way."""
    moves: int = 0
    """How often layers have begun to travel."""
    layer_bytes: tuple[int, ...] = ()
    """Of the state of each layer, once they were known."""
    evaluated: tuple[Evaluated, ...] = ()
    """Results of evaluations."""
    saved: tuple[Saved, ...] = ()
    """What scripts have saved."""
    saving: tuple[str, ...] = ()
    """Folders that were made for it."""
    last_save: LastSave | None = None
    """What was under way when all steps were made."""
    done: tuple[tuple[Member, str | None], ...] = ()
    """Who has written its parameters, or why it could not."""
    ended: JobEnded | None = None
    """How the job has ended, if it has."""
    copied: CompleteCopy | None = None
    """The copy in memory that counts."""
    job: str = ""
    """The digest of the job, if it was written down."""
    setup: Setup | None = None
    """What its workers have, if it was."""


class OtherJobError(ValueError):
    """A folder has the journal of another job, in one sentence."""


class Journal:
    """Appends; `read` is what it comes to."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        _take_off_cut_line(self._path)
        self._file = self._path.open("ab", buffering=0)
        self._unwritten = bytearray()
        """Whole lines, or the rest of one, for which there was no room on the disk."""
        self._trouble: str | None = None
        self._told: str | None = None

    def write(self, **fields: Any) -> None:
        self._unwritten += (json.dumps(encode(fields)) + "\n").encode()
        try:
            while self._unwritten:
                written: int | None = self._file.write(self._unwritten)
                del self._unwritten[: written or 0]
            self._trouble = None
        except OSError as error:
            self._trouble = reason(error)

    def news(self) -> list[JobEvent]:
        """Once: that it cannot be written any more, or again."""
        if self._trouble == self._told:
            return []
        self._told = self._trouble
        if self._trouble is None:
            return [JobEvent(f"{self._path} can be written again")]
        return [JobEvent(f"cannot write {self._path}: {self._trouble}; {_AT_RISK}")]

    def close(self) -> None:
        self._file.close()


def rows_since(path: str | Path, step: int) -> list[StepRow]:
    """Rows from this step on, as they were told."""
    return [decode(StepRow, row["told"]) for row in _lines(path) if "told" in row and row["row"] >= step]


def read(path: str | Path) -> Remembered | None:
    """None when there is nothing to go on from."""
    found: Remembered | None = None
    next_row = 0
    standby: tuple[Worker, ...] = ()
    layer_bytes: tuple[int, ...] = ()
    begins: tuple[str | None, int, int] = (None, 0, 0)
    lines = list(_lines(path))
    for fields in lines:
        if "generation" in fields:
            places = tuple(worker_of(place) for place in fields["places"])
            found = Remembered(int(fields["generation"]), int(fields["step"]), places, 0, ())
            found = found._replace(
                plan=_plan(places, fields),
                cells=_cells(places, fields),
                joiners=_joiners(fields),
                job=str(fields.get("job", "")),
                setup=decode(Setup, fields["setup"]) if fields.get("setup") else None,
            )
        elif "move" in fields and found is not None:
            found = found._replace(move=fields["move"])
        elif "row" in fields:
            next_row = int(fields["row"]) + 1
        elif "standby" in fields:
            standby = tuple(worker_of(place) for place in fields["standby"])
        elif "layer_bytes" in fields:
            layer_bytes = tuple(map(int, fields["layer_bytes"]))
        elif "begins" in fields:
            begins = tuple(fields["begins"])
            next_row = begins[1]
        elif "restored" in fields:
            begins = (None, begins[1], begins[2])
    if found is None:
        return None
    restore, step, item = begins
    bundles, made_for, fitted = _bundles(lines)
    return found._replace(
        next_row=next_row,
        bundles=bundles,
        standby=standby,
        layer_bytes=layer_bytes,
        made_for=made_for,
        fitted=fitted,
        moves=sum(row.get("move") is not None for row in lines),
        restore=restore,
        first_step=step,
        first_item=item,
        evaluated=tuple(decode(Evaluated, row["evaluated"]) for row in lines if "evaluated" in row),
        saved=tuple(decode(Saved, row["saved"]) for row in lines if "saved" in row),
        saving=tuple(str(row["saving"]) for row in lines if "saving" in row),
        last_save=next((decode(LastSave, row["last_save"]) for row in lines if "last_save" in row), None),
        done=tuple((decode(Member, row["done"]), row["error"]) for row in lines if "done" in row),
        ended=next((decode(JobEnded, row["ended"]) for row in lines if "ended" in row), None),
        copied=_copied(lines),
    )


def check_job(folder: Path, remembered: Remembered | None, job: str) -> None:
    """OtherJobError unless the journal in this folder is of this job; older ones do not say it."""
    if remembered is None or remembered.job in ("", job):
        return
    how = "is under way" if remembered.ended is None else "has ended"
    raise OtherJobError(
        f"{folder}: another job {how} there, not that of this plan (job {remembered.job} there, {job} here): "
        "use another --state for this one"
    )


def prepare(folder: Path, copied: CompleteCopy | None) -> None:
    """A folder for a job that goes on, perhaps from a copy in memory; there as a whole or not at all."""
    aside = folder.with_name(f"{folder.name}.aside")
    aside.mkdir(exist_ok=True)
    if copied is not None:
        journal = Journal(aside / FILE)
        journal.write(copied=copied)
        journal.close()
    aside.rename(folder)


def prepared(path: str | Path) -> CompleteCopy | None:
    """The copy in memory that a job goes on from which has not begun with it yet."""
    return _copied(list(_lines(path)))


def _copied(lines: list[dict[str, Any]]) -> CompleteCopy | None:
    """The newest."""
    found = [row["copied"] for row in lines if "copied" in row]
    return decode(CompleteCopy, found[-1]) if found else None


def worker_of(value: Any) -> Worker:
    pipeline, stage = value
    return int(pipeline), int(stage)


def _lines(path: str | Path) -> Iterator[dict[str, Any]]:
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        return
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield cast(dict[str, Any], row)
        elif line and number < len(lines):
            _LOGGER.warning("%s:%d: damaged, and left out", path, number)


def _take_off_cut_line(path: Path) -> None:
    """What comes after the last end of a line; nothing has been done because of it."""
    if not path.is_file():
        return
    text = path.read_bytes()
    # A new file: a coordinator before this one that still lives, paused, does not write to it any more.
    whole = text.rfind(b"\n") + 1
    try:
        write_whole(path, text[:whole])
    except OSError:
        # No room for that on the disk.
        os.truncate(path, whole)


def _plan(places: tuple[Worker, ...], fields: dict[str, Any]) -> RunningPlan | None:
    if "plan" not in fields:
        return None
    bundle, plan, standbys, on_purpose = map(int, fields["plan"])
    roles = dict(zip(places, map(worker_of, fields["roles"]), strict=True))
    return RunningPlan(bundle, plan, roles, standbys, bool(on_purpose))


def _cells(places: tuple[Worker, ...], fields: dict[str, Any]) -> dict[Worker, Worker]:
    return dict(zip(places, map(worker_of, fields["cells"]), strict=True)) if "cells" in fields else {}


def _joiners(fields: dict[str, Any]) -> dict[Worker, Worker]:
    """None in a journal that was written before they were."""
    return {worker_of(worker): worker_of(cell) for worker, cell in fields.get("joiners", ())}


def _bundles(lines: list[dict[str, Any]]) -> tuple[tuple[str, ...], dict[int, Fitted], int | None]:
    """Files of plans, those that are for certain workers alone, and which of them should be used."""
    names: list[str] = []
    made_for: dict[int, Fitted] = {}
    fitted: int | None = None
    for fields in lines:
        if "unfit" in fields:
            fitted = None
        if "bundle" not in fields:
            continue
        if "slow" in fields:
            fitted = len(names)
            made_for[fitted] = _fitted(fields["live"], fields["slow"])
        names.append(str(fields["bundle"]))
    return tuple(names), made_for, fitted


def _fitted(live: Any, slow: Any) -> Fitted:
    return Fitted(frozenset(map(worker_of, live)), {(int(p), int(s)): float(by) for p, s, by in slow})
