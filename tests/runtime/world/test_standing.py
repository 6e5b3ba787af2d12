"""Worlds in which messages and sums of gradients stand until they are aborted, as over NCCL."""

from dataclasses import replace

import pytest

from tests.runtime.world import planted_faults as planted
from tests.runtime.world.faults import KillWorker, LoseNode, SlowNode, StopCoordinator, StopWorker
from tests.runtime.world.jobs import quiet
from tests.runtime.world.scenarios import WorldJob, scenario
from tests.runtime.world.shrinking import ends_well, told
from tests.runtime.world.standing import StandingTransport
from tests.runtime.world.world import Fault, Outcome, Scenario, World


def _standing(jobs: list[WorldJob], *faults: Fault, nodes: int = 3, room: int = 2) -> Scenario:
    return quiet(
        7,
        jobs,
        faults=faults,
        steps=30,
        nodes=nodes,
        room=room,
        checkpoints=0,
        copies=0,
        echoes=0.0,
        recut="off",
        saves=False,
        standing=True,
    )


def _goes_on(story: Scenario) -> Outcome:
    outcome = ends_well(story)
    return outcome


def _taken_back(outcome: Outcome) -> list[str]:
    return [line for line in outcome.story if " takes back step " in line]


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_a_step_of_a_sum_that_was_cut_off_is_taken_back(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """A worker is killed, and nobody hears of it until its peers stand in a sum with it; the abort lets their
    devices step with what it leaves there."""
    stories = [
        _standing(
            jobs[kind : kind + 1],
            StopCoordinator(at / 1000, 0.3),
            KillWorker(at / 1000, worker=(1, 0)),
            room=2 * jobs[kind].bundle.tensor,
        )
        for at in range(2000, 2100, 10)
    ]
    assert any([_taken_back(_goes_on(story)) for story in stories])
    planted.cut_off_sums_count(monkeypatch)
    wrong = next(wrong for story in stories for wrong in World(story).run().wrong)
    assert "in a plain loop" in wrong or "are peers and differ" in wrong


def test_a_step_of_a_worker_without_peers_is_taken_back(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is slow, so its neighbours have made the step when one of them is killed, and a gradient from there
    never arrives: nobody else holds the stage, and nothing is summed."""
    stories = [
        _standing(
            jobs[2:3],
            LoseNode(2.0, node=2),
            SlowNode(4.0, 9.0, node=3, factor=6.0),
            KillWorker(6.5 + at / 1000, worker=(1, 1)),
            nodes=4,
            room=1,
        )
        for at in range(200, 360, 16)
    ]
    alone = [
        line
        for story in stories
        for line in _taken_back(_goes_on(story))
        if "worker 1:0" in line and float(line.split()[0]) > 6.5
    ]
    assert alone
    planted.cut_off_sums_count(monkeypatch)
    assert any("in a plain loop" in wrong for story in stories for wrong in World(story).run().wrong)


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_a_worker_is_stopped(jobs: list[WorldJob], kind: int) -> None:
    """Nobody is told that it does not answer, and all others leave it behind."""
    for at in (2.0, 2.013, 2.026):
        stop = StopWorker(at, 6.0, worker=(1, 1))
        room = 2 * jobs[kind].bundle.tensor
        outcome = _goes_on(_standing(jobs[kind : kind + 1], stop, room=room))
        assert outcome.recoveries > 1


def test_workers_are_killed_while_others_leave_and_meet(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    called_off, left = 0, set[StandingTransport]()
    join, abort, close = StandingTransport.join, StandingTransport.abort, StandingTransport.close

    async def watched_join(self: StandingTransport) -> None:
        nonlocal called_off
        try:
            await join(self)
        except RuntimeError:
            called_off += 1
            raise

    def watched_abort(self: StandingTransport) -> None:
        left.add(self)
        abort(self)

    def watched_close(self: StandingTransport) -> None:
        close(self)
        left.discard(self)

    monkeypatch.setattr(StandingTransport, "join", watched_join)
    monkeypatch.setattr(StandingTransport, "abort", watched_abort)
    monkeypatch.setattr(StandingTransport, "close", watched_close)
    were_leaving = 0
    for at in range(2, 152, 15):
        left.clear()
        before = called_off
        first, second = KillWorker(2.0, worker=(1, 1)), KillWorker(2.0 + at / 1000, worker=(0, 0))
        _goes_on(_standing(jobs[:1], first, second))
        were_leaving += len(left) > called_off - before
    assert called_off and were_leaving


def test_a_device_that_waits_is_shown_to_wait(jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """While the coordinator is stopped nobody aborts anything, for longer than an instruction may take."""
    story = _standing(jobs[:1], StopCoordinator(1.99, 24.0), KillWorker(2.0, worker=(1, 1)))
    assert _goes_on(story).recoveries > 1
    planted.waits_of_devices_are_not_shown(monkeypatch)
    (wrong,) = World(story).run().wrong
    assert "got stuck alike" in wrong


def test_the_same_seed_is_the_same_story(jobs: list[WorldJob]) -> None:
    for seed in (5, 9):
        story = replace(scenario(seed, jobs), standing=True)
        first, again = World(story).run(), World(story).run()
        assert (first.digest, first.events) == (again.digest, again.events)
        assert "calls that stand until they are aborted" in told(story, first)
