"""Steps from which survivors go on: none is missing, no worker goes back by two, verdicts are never
guessed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.coordinator.regrouping import (
    CannotAgreeError,
    StageGone,
    Standing,
    possible_moves,
    stand,
)
from recycle_runtime.protocol.messages.generations import HeldState, LayerShards, Sums
from recycle_runtime.protocol.messages.members import Member


class Survivor:
    """A member as the decision sees it; squares of its stage are what its peers have too."""

    def __init__(self, applied: int, is_open: bool, own: Sums, known: Sums | None) -> None:
        self.applied: int | None = applied
        self.is_fresh = False
        self.own, self.known, self.is_open = own, known, is_open

    def report(self) -> HeldState:
        if self.applied is None:
            return HeldState(None, is_fresh=False)
        open_sums = self.own if self.is_open else None
        return HeldState(self.applied, self.is_fresh, self.known, self.applied - self.is_open, open_sums)

    def obey(self, step: int, sums: Sums | None) -> None:
        """As `Stage.stand` does."""
        assert self.applied is not None
        if self.applied == step + 1:
            self.known = sums
        elif self.is_open:
            assert sums is not None
            self.known = sums
        self.applied, self.is_open = step, False


class Job:
    """Survivors of a failure in step `step`: some have made it, some have not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.stages, self.parts = chance.randrange(1, 4), chance.randrange(1, 3)
        pipelines = chance.randrange(1, 4)
        self.step = chance.randrange(1, 5)
        keys = [(stage, part) for stage in range(self.stages) for part in range(self.parts)]
        self.squares = {key: Sums(float(chance.randrange(9)), float(chance.randrange(2))) for key in keys}
        self.total = Sums(
            sum(sums.squares for sums in self.squares.values()),
            sum(sums.not_finite for sums in self.squares.values()),
        )
        is_known = chance.random() < 0.5
        """True if the sum over all workers came through anywhere."""
        kinds = ["waits", "knows", "ahead"] if chance.random() < 0.7 else ["knows", "far ahead"]
        """Who has waited for the verdict on the next step knows that everybody has the one on this."""
        self.members: dict[Member, Survivor] = {}
        for stage, part in keys:
            for pipeline in range(pipelines):
                self.members[Member((pipeline, stage), part)] = self._survivor(
                    self.squares[stage, part], chance.choice(kinds) if is_known else "waits"
                )

    def _survivor(self, own: Sums, kind: str) -> Survivor:
        if kind == "waits":
            return Survivor(self.step, True, own, None)
        if kind == "knows":
            return Survivor(self.step, False, own, self.total)
        later = Sums(self.total.squares + 100, 0.0)
        return Survivor(self.step + 1, kind == "ahead", own, self.total if kind == "ahead" else later)

    def reports(self) -> dict[Member, HeldState]:
        return {member: survivor.report() for member, survivor in self.members.items()}

    def least(self) -> int:
        return min(s.applied for s in self.members.values() if s.applied is not None and not s.is_fresh)


def check(job: Job, standing: Standing) -> None:
    reports = job.reports()
    held = {m: r for m, r in reports.items() if r.applied is not None and not r.is_fresh}
    assert standing.step == job.least()
    assert standing.undo == {member for member, report in held.items() if report.applied == standing.step + 1}
    assert standing.donors.keys() == reports.keys() - held.keys()
    for member, donor in standing.donors.items():
        assert donor in held
        assert (donor.worker[1], donor.tp_rank) == (member.worker[1], member.tp_rank)
    lacking = [m for m, r in held.items() if r.applied == standing.step and r.unsettled is not None]
    if lacking and standing.step == job.step:
        assert standing.sums == job.total


@given(st.integers(0, 2**32))
def test_consistent_states(seed: int) -> None:
    job = Job(random.Random(seed))
    standing = stand(job.reports(), job.stages)
    assert isinstance(standing, Standing)
    check(job, standing)


@given(st.integers(0, 2**32))
def test_failures_while_others_recover(seed: int) -> None:
    """Some obey, some never hear of it, some are gone, some come: the verdict stays the right one."""
    chance = random.Random(seed)
    job = Job(chance)
    for _ in range(4):
        standing = stand(job.reports(), job.stages)
        assert isinstance(standing, Standing)
        check(job, standing)
        misses = chance.random()
        for member, survivor in job.members.items():
            if chance.random() < misses:
                continue
            if member in standing.donors:
                if chance.random() < 0.5:
                    survivor.applied = None
                    survivor.is_fresh = False
                else:
                    survivor.applied, survivor.is_fresh, survivor.is_open = standing.step, False, False
                    survivor.known = standing.sums
            else:
                survivor.obey(standing.step, standing.sums)
        _lose_and_join(job, chance)


def _lose_and_join(job: Job, chance: random.Random) -> None:
    for member in list(job.members):
        same = [
            other
            for other, survivor in job.members.items()
            if (other.worker[1], other.tp_rank) == (member.worker[1], member.tp_rank)
            and other != member
            and survivor.applied is not None
            and not survivor.is_fresh
        ]
        if same and chance.random() < 0.3:
            joiner = Survivor(0, False, job.members[member].own, None)
            joiner.is_fresh = True
            del job.members[member]
            if chance.random() < 0.5:
                job.members[member] = joiner


def test_everybody_is_fresh_in_the_beginning() -> None:
    reports = {Member((pipeline, stage), 0): HeldState(0, True) for pipeline in (0, 1) for stage in (0, 1)}
    assert stand(reports, 2) == Standing(0, frozenset(), {}, None)


def test_a_stage_that_only_joiners_have_is_gone() -> None:
    reports = {Member((0, 0), 0): HeldState(3, False), Member((0, 1), 0): HeldState(0, True)}
    assert stand(reports, 2) == StageGone((1,))


def test_a_stage_with_half_a_state_is_gone() -> None:
    reports = {Member((0, 0), 0): HeldState(3, False), Member((0, 1), 0): HeldState(None, False)}
    assert stand(reports, 2) == StageGone((1,))


def test_two_steps_apart_cannot_be() -> None:
    reports = {Member((0, 0), 0): HeldState(3, False), Member((0, 1), 0): HeldState(5, False)}
    with pytest.raises(CannotAgreeError, match=r"0:1 are more than one step ahead of step 3"):
        stand(reports, 2)


KNOWN = Sums(4.0, 0.0)


def test_a_step_that_waited_for_the_norm_is_made_by_all() -> None:
    made = HeldState(4, False, KNOWN, 4)
    waits = HeldState(3, False, Sums(9.0, 0.0), 3, can_go_forward=True)
    standing = stand({Member((0, 0), 0): made, Member((0, 1), 0): waits, Member((1, 1), 0): waits}, 2)
    assert isinstance(standing, Standing)
    assert (standing.step, standing.undo, standing.sums) == (4, frozenset(), KNOWN)


def test_one_without_its_gradients_makes_all_go_back() -> None:
    made = HeldState(4, False, KNOWN, 4)
    waits = HeldState(3, False, Sums(9.0, 0.0), 3, can_go_forward=True)
    behind = waits._replace(can_go_forward=False)
    standing = stand({Member((0, 0), 0): made, Member((0, 1), 0): waits, Member((1, 1), 0): behind}, 2)
    assert isinstance(standing, Standing)
    assert (standing.step, standing.undo) == (3, frozenset({Member((0, 0), 0)}))


def owning(*held: int) -> HeldState:
    return HeldState(3, False, shards=(LayerShards(7, 3, held),))


def test_a_shard_that_nobody_holds() -> None:
    held = {Member((0, 0), 0): owning(0, 1), Member((1, 0), 0): owning(1, 2)}
    assert isinstance(stand(held, 1), Standing)
    lost = stand({Member((0, 0), 0): owning(0, 1), Member((2, 0), 0): owning(0)}, 1)
    assert lost == StageGone((0,), "shard 2 of the optimizer state of layer 7")


def test_the_last_owner_of_a_shard_does_not_move() -> None:
    place = (0, 1)
    spare = {Member((0, 0), 0): owning(0, 1, 2), Member((1, 0), 0): owning(1, 2)}
    assert [to.worker for _, to in possible_moves({(1, 0): place}, spare, ())] == [place]
    assert list(possible_moves({(0, 0): place}, spare, ())) == []
