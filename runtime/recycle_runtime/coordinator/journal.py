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
from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.codec import Natural, ProtocolError, decode, encode
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import JobEnded, JobEvent
from recycle_runtime.protocol.messages.scripts import Evaluated, Saved
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

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
    pids: Mapping[Member, int] = MappingProxyType({})
    """Which processes all of these were, if it was written down."""
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
    skipped: tuple[int, int] = (-1, 0)
    """The last step of which it is known what became of it, and how many up to it were left out in a row."""


class JournalError(ValueError):
    """A journal that a job cannot go on from, in one sentence."""


class OtherJobError(JournalError):
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


def told_since(path: str | Path, step: int) -> list[StepRow | StepSettled]:
    """Rows from this step on, as they were told, and what became of steps from the one before it on."""
    told: list[StepRow | StepSettled] = []
    damaged = _Damaged(path)
    for number, fields in _lines(path):
        if "settled" in fields and fields["settled"].step >= step - 1:
            told.append(fields["settled"])
        if "told" not in fields or fields["row"] < step:
            continue
        try:
            told.append(decode(StepRow, fields["told"]))
        except ProtocolError:
            damaged.note(number)
    damaged.say()
    return told


def rows_since(path: str | Path, step: int) -> list[StepRow]:
    """Rows from this step on, as they were told."""
    return [row for row in told_since(path, step) if isinstance(row, StepRow)]


def read(path: str | Path) -> Remembered | None:
    """None when there is nothing to go on from; JournalError if a line says what it cannot say."""
    found: Remembered | None = None
    next_row = 0
    standby: tuple[Worker, ...] = ()
    layer_bytes: tuple[int, ...] = ()
    begins: tuple[str | None, int, int] = (None, 0, 0)
    lines = [fields for _, fields in _lines(path)]
    for fields in lines:
        if "generation" in fields:
            places = fields["places"]
            found = Remembered(fields["generation"], fields["step"], places, 0, ())
            found = found._replace(
                plan=_plan(places, fields),
                cells=_cells(places, fields),
                joiners=_joiners(fields),
                pids=dict(fields.get("pids", ())),
                job=fields.get("job", ""),
                setup=fields.get("setup"),
            )
        elif "move" in fields and found is not None:
            found = found._replace(move=fields["move"])
        elif "row" in fields:
            next_row = fields["row"] + 1
        elif "standby" in fields:
            standby = fields["standby"]
        elif "layer_bytes" in fields:
            layer_bytes = fields["layer_bytes"]
        elif "begins" in fields:
            begins = fields["begins"]
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
        evaluated=tuple(row["evaluated"] for row in lines if "evaluated" in row),
        saved=tuple(row["saved"] for row in lines if "saved" in row),
        saving=tuple(row["saving"] for row in lines if "saving" in row),
        last_save=next((row["last_save"] for row in lines if "last_save" in row), None),
        done=tuple((row["done"], row["error"]) for row in lines if "done" in row),
        ended=next((row["ended"] for row in lines if "ended" in row), None),
        copied=_copied(lines),
        skipped=_skipped(lines),
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
    return _copied([fields for _, fields in _lines(path)])


def _copied(lines: list[dict[str, Any]]) -> CompleteCopy | None:
    """The newest."""
    found = [row["copied"] for row in lines if "copied" in row]
    return found[-1] if found else None


def _skipped(lines: list[dict[str, Any]]) -> tuple[int, int]:
    last, in_a_row = -1, 0
    for fields in lines:
        if "begins" in fields:
            last, in_a_row = -1, 0
        elif "settled" in fields:
            settled: StepSettled = fields["settled"]
            last, in_a_row = settled.step, in_a_row + 1 if settled.is_skipped else 0
    return last, in_a_row


def check_fits(path: str | Path, state: Remembered, book: PlanBook) -> None:
    """JournalError unless the last generation can be one of these plans."""
    if (wrong := _misfit(state, book)) is not None:
        line = max(number for number, fields in _lines(path) if "generation" in fields)
        raise JournalError(f"{path}:{line}: damaged, or of another job: {wrong}")


def _misfit(state: Remembered, book: PlanBook) -> str | None:
    """What cannot be true, in a few words."""
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
    return None if all(map(here.has, state.standby)) else "workers stand by that its plan does not have"


class _Damaged:
    """Lines that are left out: told once, however many they are."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._first, self._count = path, 0, 0

    def note(self, line: int) -> None:
        self._first = self._first or line
        self._count += 1

    def say(self) -> None:
        if self._count == 1:
            _LOGGER.warning("%s:%d: damaged, and left out", self._path, self._first)
        elif self._count:
            _LOGGER.warning(
                "%s:%d: damaged, and left out, as are %d lines after it",
                self._path, self._first, self._count - 1,
            )  # fmt: skip


def _lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What stands in each, with its number; JournalError if that is not what such a line has."""
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        return
    lines = text.split(b"\n")
    damaged = _Damaged(path)
    for number, line in enumerate(lines, 1):
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            try:
                yield number, _checked(cast(dict[str, Any], row))
            except ProtocolError as error:
                raise JournalError(f"{path}:{number}: damaged: {error}") from None
        elif line and number < len(lines):
            damaged.note(number)
    damaged.say()


def _checked(fields: dict[str, Any]) -> dict[str, Any]:
    """Every field as what it is; those that later versions may add stay as they are."""
    for name, others in _NEEDS.items():
        if name in fields and (missing := [other for other in others if other not in fields]):
            raise ProtocolError(f"{name} without {missing[0]}")
    read = {
        name: decode(_FIELDS[name], value, name) if name in _FIELDS else value
        for name, value in fields.items()
    }
    for name in ("roles", "cells"):
        if name in read and len(read[name]) != len(read.get("places", ())):
            raise ProtocolError(f"{name} has {len(read[name])} values, not {len(read.get('places', ()))}")
    return read


_Place = tuple[Natural, Natural]
_FIELDS: Mapping[str, Any] = {
    "generation": Natural,
    "step": Natural,
    "places": tuple[_Place, ...],
    "plan": tuple[Natural, Natural, Natural, Natural],
    "roles": tuple[_Place, ...],
    "cells": tuple[_Place, ...],
    "joiners": tuple[tuple[_Place, _Place], ...],
    "pids": tuple[tuple[Member, Natural], ...],
    "job": str,
    "setup": Setup | None,
    "move": str | None,
    "row": Natural,
    "settled": StepSettled,
    "standby": tuple[_Place, ...],
    "layer_bytes": tuple[Natural, ...],
    "begins": tuple[str | None, Natural, Natural],
    "evaluated": Evaluated,
    "saved": Saved,
    "saving": str,
    "last_save": LastSave,
    "done": Member,
    "error": str | None,
    "ended": JobEnded,
    "copied": CompleteCopy,
    "bundle": str,
    "live": tuple[_Place, ...],
    "slow": tuple[tuple[Natural, Natural, float], ...],
}
"""What a field of a line may be. What was told of each row, of many, is looked at when it is asked for."""
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "generation": ("step", "places"),
    "plan": ("roles",),
    "told": ("row",),
    "done": ("error",),
    "slow": ("bundle", "live"),
}


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
    bundle, plan, standbys, on_purpose = fields["plan"]
    roles = dict(zip(places, fields["roles"], strict=True))
    return RunningPlan(bundle, plan, roles, standbys, bool(on_purpose))


def _cells(places: tuple[Worker, ...], fields: dict[str, Any]) -> dict[Worker, Worker]:
    return dict(zip(places, fields["cells"], strict=True)) if "cells" in fields else {}


def _joiners(fields: dict[str, Any]) -> dict[Worker, Worker]:
    """None in a journal that was written before they were."""
    return dict(fields.get("joiners", ()))


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
        names.append(fields["bundle"])
    return tuple(names), made_for, fitted


def _fitted(live: Any, slow: Any) -> Fitted:
    return Fitted(frozenset(live), {(pipeline, stage): by for pipeline, stage, by in slow})
