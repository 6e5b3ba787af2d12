"""Jobs whose optimizer state is in shards, in simulated worlds: no shard is lost while one owner is left."""

from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.runtime.world import planted_faults as planted
from tests.runtime.world.faults import KillWorker
from tests.runtime.world.jobs import in_rounds, quiet
from tests.runtime.world.scenarios import WorldJob, scenario
from tests.runtime.world.shrinking import told
from tests.runtime.world.world import Fault, Outcome, Scenario, World

FIXED = 20
"""Seeds that every run of the tests tries, `make test` half of them; `make soak` tries new ones."""
PART = 10
TWO, WAITING, THREE = 0, 1, 3
"""Jobs of three pipelines with two owners: one steps before the norm is known, one after that. And of four
with three."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(PART, FIXED, PART))]
)
def test_nothing_goes_wrong(sharded: list[WorldJob], first: int) -> None:
    for seed in range(first, first + PART):
        outcome = World(scenario(seed, sharded)).run()
        assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


@pytest.mark.parametrize(
    ("seed", "standing"), [(47, False), (61, True), (201, True), (880193, True), (880235, True)]
)
def test_seeds_that_went_wrong(sharded: list[WorldJob], seed: int, standing: bool) -> None:
    outcome = World(replace(scenario(seed, sharded), standing=standing)).run()
    assert not outcome.wrong, "\n".join(outcome.story)


def _killed(jobs: list[WorldJob], kind: int, *faults: Fault, wild: bool = False, room: int = 1) -> Scenario:
    ordinary = {"checkpoints": 0, "copies": 0, "echoes": 0.0, "saves": False, "resumes": 0}
    story = quiet(5, jobs[kind : kind + 1], faults=faults, steps=12, nodes=6 // room, room=room, wild=wild)
    return replace(story, **ordinary, is_resumed=False, building=0.0)


def _run(story: Scenario) -> Outcome:
    outcome = World(story).run()
    assert not outcome.wrong, told(story, outcome)
    return outcome


@pytest.mark.parametrize(("kind", "pipeline"), list(product((TWO, WAITING), range(3))))
def test_an_owner_is_killed_at_any_time(sharded: list[WorldJob], kind: int, pipeline: int) -> None:
    for at in range(200 + 4 * (pipeline % 2), 216, 8):
        faults = KillWorker(at / 100, worker=(pipeline, 0)), KillWorker(at / 100, worker=(pipeline, 1))
        outcome = _run(_killed(sharded, kind, *faults))
        assert outcome.error is None and outcome.recoveries > 1, outcome.story


def test_a_worker_is_killed_while_peers_meet_in_rounds(tmp_path: Path) -> None:
    """Others serve where it has computed, and it serves while it waits for its state."""
    jobs = [in_rounds(tmp_path)]
    for at in range(200, 232, 4):
        outcome = _run(_killed(jobs, 0, KillWorker(at / 100, worker=(1, 1))))
        assert outcome.error is None and outcome.recoveries > 1, outcome.story


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(PART, FIXED, PART))]
)
def test_rounds_of_another_cut(tmp_path: Path, first: int) -> None:
    """Whatever happens while layers travel, and after that."""
    jobs = [in_rounds(tmp_path, recut=True)]
    for seed in range(first, first + PART):
        outcome = World(replace(scenario(seed, jobs), recut="always")).run()
        assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


def test_rounds_are_cut_again_and_a_second_worker_fails(tmp_path: Path) -> None:
    """Before layers travel, meanwhile, and under the other cut."""
    jobs = [in_rounds(tmp_path, recut=True)]
    cuts = 0
    for at in range(230, 330, 10):
        faults = KillWorker(2.05, worker=(1, 1)), KillWorker(at / 100, worker=(2, 0))
        outcome = _run(replace(_killed(jobs, 0, *faults), recut="always", steps=60))
        assert outcome.error is None and outcome.recoveries > 1, outcome.story
        cuts += any("re-cut to 4x3,2x2" in line for line in outcome.story)
    assert cuts > 2


@pytest.mark.parametrize("pair", list(combinations(range(4), 2)))
def test_two_of_three_owners_are_killed_at_once(sharded: list[WorldJob], pair: tuple[int, int]) -> None:
    faults = [KillWorker(2.08, worker=(pipeline, 1)) for pipeline in pair]
    outcome = _run(replace(_killed(sharded, THREE, *faults), nodes=8))
    assert outcome.error is None and outcome.recoveries, outcome.story


@pytest.mark.parametrize("kind", [TWO, WAITING])
def test_all_owners_of_a_shard_are_killed_at_once(sharded: list[WorldJob], kind: int) -> None:
    """Two of three workers of a stage at the same time: the third does not have every shard, and says so."""
    faults = KillWorker(2.1, worker=(0, 0)), KillWorker(2.1, worker=(1, 0))
    outcome = _run(_killed(sharded, kind, *faults, wild=True))
    assert outcome.error is not None and "of the optimizer state of layer" in outcome.error, outcome.story


def test_owners_are_made_again_before_the_next_fails(sharded: list[WorldJob]) -> None:
    """One after the other, with time between them for copies and for others to join."""
    faults = [KillWorker(2.1, worker=(0, 0)), KillWorker(4.1, worker=(1, 0)), KillWorker(6.1, worker=(2, 0))]
    story = replace(_killed(sharded, TWO, *faults), steps=60)
    outcome = _run(story)
    assert outcome.error is None and outcome.recoveries > 3, told(story, outcome)
    said = [line for line in outcome.story if "shards" in line]
    assert any("owners until they are copied" in line for line in said), said
    assert any("owners again" in line for line in said), said


@pytest.mark.parametrize("plant", [planted.lost_shards_count, planted.shards_of_anybody])
def test_a_planted_fault_is_found(
    sharded: list[WorldJob], monkeypatch: pytest.MonkeyPatch, plant: planted.Plant
) -> None:
    plant(monkeypatch)
    faults = KillWorker(2.1, worker=(0, 0)), KillWorker(2.1, worker=(1, 0))
    assert World(_killed(sharded, TWO, *faults, wild=True)).run().wrong
