"""Faults that are planted in the product, to see that worlds find them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from recycle_runtime.coordinator import regrouping, state_machine
from recycle_runtime.coordinator.checkpoint_files import CheckpointFiles
from recycle_runtime.coordinator.events import CheckpointClosed
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.membership import Entry, Roster
from recycle_runtime.coordinator.state_machine import Phase, StateMachine
from recycle_runtime.coordinator.step_rows import StepRows
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.steps import WorkerSteps
from recycle_runtime.protocol.messages.generations import HeldState, Leave, LeftGroup
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import LossShare, StepDone
from recycle_runtime.protocol.messages.wire import ToWorker
from recycle_runtime.worker import neighbour_copies
from recycle_runtime.worker.link import Link
from tests.runtime.world.standing import StandingTransport
from tests.runtime.world.world import TOKEN, World

Plant = Callable[[pytest.MonkeyPatch], None]


def count_steps_twice(patch: pytest.MonkeyPatch) -> None:
    """A step that is broken off behind its optimizer is made again by who made it."""
    patch.setattr(Chunk, "stand", _stand_without_undo)


def _stand_without_undo(self: Chunk, step: int, sums: object) -> None:
    self.stepper.progress = self.stepper.progress._replace(steps=step)
    self.stepper.discard()
    self.is_fresh = False


def forget_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows are told and not written down."""
    real = Journal.write

    def write(self: Journal, **fields: object) -> None:
        if "row" not in fields:
            real(self, **fields)

    patch.setattr(Journal, "write", write)


def take_the_newest_step(patch: pytest.MonkeyPatch) -> None:
    """All continue where the first of them stands, and not where the last does."""
    real = regrouping.stand

    def stand(reports: dict[object, HeldState], *rest: object) -> object:
        found = real(reports, *rest)  # type: ignore[arg-type]
        applied = [each.applied for each in reports.values() if each.applied is not None]
        return found._replace(step=max(applied), undo=frozenset()) if hasattr(found, "step") else found

    patch.setattr(state_machine, "stand", stand)


def old_reports(patch: pytest.MonkeyPatch) -> None:
    """A worker's report for a generation that was given up counts for the next one."""

    def have_reported(self: Roster, generation: int, *, with_new: bool) -> bool:
        return all(self.entries[member].report is not None for member in self.members())

    patch.setattr(Roster, "have_reported", have_reported)


def fresh_counts(patch: pytest.MonkeyPatch) -> None:
    """A process that has just been built counts as one that was trained."""
    real = regrouping.stand

    def stand(reports: dict[object, HeldState], *rest: object) -> object:
        step = max((each.applied or 0 for each in reports.values()), default=0)
        trained = {
            member: HeldState(step, is_fresh=False) if each.is_fresh else each
            for member, each in reports.items()
        }
        return real(trained, *rest)  # type: ignore[arg-type]

    patch.setattr(state_machine, "stand", stand)


def rows_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A step counts when the first worker has made it."""
    real = StepRows.add

    def add(self: StepRows, member: object, done: StepDone) -> object:
        self._members = frozenset({member})  # type: ignore  # pyright: ignore
        return real(self, member, done)  # type: ignore[arg-type]

    patch.setattr(StepRows, "add", add)


def void_shares_count(patch: pytest.MonkeyPatch) -> None:
    """Found once: what a worker said of a step counts, though the step was run again after a correction."""
    real = StepRows.add_share

    def add_share(self: StepRows, member: Member, said: LossShare | StepDone) -> None:
        real(self, member, replace(said, corrections=0))

    patch.setattr(StepRows, "add_share", add_share)


def anybody_is_let_in(patch: pytest.MonkeyPatch) -> None:
    """A stranger need not know the token."""
    real = World._accept  # pyright: ignore[reportPrivateUsage]
    patch.setattr(World, "_accept", lambda self, process, token: real(self, process, TOKEN))  # pyright: ignore


def end_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Found once: a coordinator that comes back does not know that the job has ended."""
    real = Journal.write

    def write(self: Journal, **fields: object) -> None:
        if "ended" not in fields:
            real(self, **fields)

    patch.setattr(Journal, "write", write)


def old_messages_count(patch: pytest.MonkeyPatch) -> None:
    """A message about an old generation counts for the one that runs."""

    def is_current(self: StateMachine, member: Member, generation: int) -> bool:
        return member in self.roster and self.phase is Phase.RUNNING

    patch.setattr(StateMachine, "_is_current", is_current)


def any_report_counts(patch: pytest.MonkeyPatch) -> None:
    """A report for a generation that was given up is taken for one that its worker has left."""

    def left(self: StateMachine, member: Member, message: LeftGroup) -> None:
        if member in self.roster and message.generation < self.number:
            self.roster.entries[member].is_leaving = False
        real(self, member, message)

    real = StateMachine._left_group  # pyright: ignore[reportPrivateUsage]
    patch.setattr(StateMachine, "_left_group", left)


def old_copies_count(patch: pytest.MonkeyPatch) -> None:
    """A copy in memory is read that is not the state of its step."""
    real = neighbour_copies.apply_states

    def load(chunk: Chunk, states: Mapping[str, Any], source: str) -> None:
        older = {name: {**state, "value": state["value"] + 1} for name, state in states.items()}
        real(chunk, older, source)

    patch.setattr(neighbour_copies, "apply_states", load)


def donors_of_any_rank(patch: pytest.MonkeyPatch) -> None:
    """A joiner gets the state of a peer's first rank, whichever it is itself."""

    def donor(member: Member, holders: Mapping[Member, int]) -> Member | None:
        return min((other for other in holders if other.worker[1] == member.worker[1]), default=None)

    patch.setattr(regrouping, "_donor", donor)


def generations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Generations after the first are not written down."""
    real = Journal.write

    def write(self: Journal, **fields: object) -> None:
        if fields.get("generation", 1) == 1:
            real(self, **fields)

    patch.setattr(Journal, "write", write)


def nobody_leaves(patch: pytest.MonkeyPatch) -> None:
    """A worker in a group does not hear an order to leave it."""
    real = Link._take_order  # pyright: ignore[reportPrivateUsage]

    def take(self: Link, message: ToWorker) -> None:
        if not (isinstance(message, Leave) and self.on_leave is not None):
            real(self, message)

    patch.setattr(Link, "_take_order", take)


def given_up_counts(patch: pytest.MonkeyPatch) -> None:
    """A worker that was given up and comes back keeps its state."""
    patch.setattr(Entry, "is_outdated", property(lambda _: False, lambda _, value: None), raising=False)


def nobody_looks_for_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    """Found once: a worker takes it for silence of the coordinator that there is none."""
    patch.setattr(Link, "is_away", property(lambda _: False, lambda _, value: None), raising=False)


def files_are_closed_first(patch: pytest.MonkeyPatch) -> None:
    """Found once: when the job ends, nothing is deleted any more, not even older checkpoints."""
    real = CheckpointFiles.finish

    def finish(self: CheckpointFiles) -> list[CheckpointClosed]:
        closed = real(self)
        self.close()
        return closed

    patch.setattr(CheckpointFiles, "finish", finish)


def cut_off_sums_count(patch: pytest.MonkeyPatch) -> None:
    """A step that was made with a sum which an abort has cut off stands."""

    def take_back_broken(self: WorkerSteps) -> None: ...

    patch.setattr(WorkerSteps, "take_back_broken", take_back_broken)


def waits_of_devices_are_not_shown(patch: pytest.MonkeyPatch) -> None:
    """A worker whose device waits for others looks like one that hangs."""
    patch.setattr(StandingTransport, "waits_on_device", property(lambda _: False))


def lost_shards_count(patch: pytest.MonkeyPatch) -> None:
    """Survivors go on, whether or not any of them has every shard of optimizer state."""

    def lost_shard(holders: object) -> None: ...

    patch.setattr(regrouping, "lost_shard", lost_shard)


def shards_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A worker says that it has all shards of its layers, and makes what it does not have as built."""

    def shards_here(layer: Layer) -> set[int]:
        return set(range(len(layer.shards)))

    def forget_values(layer: Layer) -> None: ...

    patch.setattr(Layer, "shards_here", property(shards_here))
    patch.setattr(Layer, "forget_values", forget_values)
