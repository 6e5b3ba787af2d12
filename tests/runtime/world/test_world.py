"""Jobs in simulated worlds: nothing goes wrong that should not, and the same seed is the same story."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.coordinator.events import EndMove, Event, Order, TellRow
from recycle_runtime.coordinator.neighbour_copies import NeighbourCopies
from recycle_runtime.coordinator.service import Service
from recycle_runtime.coordinator.state_machine import StateMachine
from tests.runtime.world import planted_faults as planted
from tests.runtime.world.faults import (
    CutLine,
    FullDisk,
    KillAgent,
    KillCoordinator,
    KillWorker,
    LoseNode,
    MoveCoordinator,
    NewNode,
    Partition,
    SlowDisk,
    StopAgent,
    StopCoordinator,
    StopNode,
    StopWorker,
    Stranger,
    TearJournal,
)
from tests.runtime.world.jobs import quiet
from tests.runtime.world.scenarios import WorldJob, scenario
from tests.runtime.world.shrinking import ends_well, shrunk, told
from tests.runtime.world.world import Fault, Scenario, World

FIXED = 60
"""Seeds that every run of the tests tries; `make soak` tries new ones."""
PART = 20


@pytest.mark.parametrize("first", range(0, FIXED, PART))
def test_nothing_goes_wrong(jobs: list[WorldJob], first: int) -> None:
    for seed in range(first, first + PART):
        outcome = World(scenario(seed, jobs)).run()
        assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


@pytest.mark.parametrize("number", range(2))
def test_jobs_of_other_shapes(shapes: list[WorldJob], number: int) -> None:
    """One stage, and three."""
    for seed in range(PART):
        outcome = World(scenario(seed, shapes[number : number + 1])).run()
        assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


def _while_layers_travel(seed: int) -> Iterator[Fault]:
    """Nodes of one worker each are lost and join, so that other cuts pay; and what comes in between."""
    chance, at = random.Random(seed), 2.0
    for _ in range(chance.randrange(3, 8)):
        node, worker = chance.randrange(6), (chance.randrange(3), chance.randrange(2))
        lost, others = LoseNode(at, node=node), (KillCoordinator(at, 0.05), CutLine(at, worker=worker))
        yield chance.choice((lost, lost, NewNode(at), KillWorker(at, worker=worker), *others))
        at += chance.choice((0.02, 0.1, 0.3, 1.0)) * (0.5 + chance.random())


def test_the_cut_changes(
    jobs: list[WorldJob], shapes: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And some of these changes are given up; else this would say nothing."""
    handle, ends = StateMachine.handle, list[bool]()

    def note_moves(job: StateMachine, event: Event, now: float) -> list[Order]:
        orders = handle(job, event, now)
        ends.extend(order.why is None for order in orders if isinstance(order, EndMove))
        return orders

    monkeypatch.setattr(StateMachine, "handle", note_moves)
    for seed in range(PART):
        for job in (jobs[0], shapes[2]):
            faults = tuple(_while_layers_travel(seed))
            story = quiet(seed, [job], faults=faults, steps=60, nodes=6, room=1, recut="always", copies=0)
            ends_well(replace(story, checkpoints=0, saves=False, echoes=0.0))
    assert sum(ends) > 10 and not all(ends), ends


def test_a_coordinator_is_killed_and_nobody_leaves(jobs: list[WorldJob]) -> None:
    """All train meanwhile, and go on in the same generation."""
    story = quiet(7, jobs[:1], faults=(KillCoordinator(2.5, 0.3),), steps=20, nodes=3, checkpoints=0)
    outcome = ends_well(replace(story, copies=0, recut="off"))
    assert outcome.recoveries == 1, told(story, outcome)


def test_an_agent_that_relays_is_killed_and_nobody_leaves(jobs: list[WorldJob]) -> None:
    """Its workers go on by themselves, in the same generation."""
    story = quiet(7, jobs[:1], faults=(KillAgent(2.5, 3.0, node=0),), steps=60, relay=True, nodes=3)
    outcome = ends_well(story)
    assert outcome.recoveries == 1, told(story, outcome)


@pytest.mark.parametrize("relay", [False, True])
def test_an_agent_that_is_killed_while_its_workers_are_to_be_started(
    jobs: list[WorldJob], relay: bool
) -> None:
    """Found once: whoever it had been told to start, and had not started, was waited for in vain. Some of
    these moments lie before the order, some between two ranks of a worker, some after all of them."""
    for job, node, at in product(jobs[2:], (0, 1), (0.005, 0.045)):
        faults = (KillAgent(at, 0.3, node=node),)
        room = 2 * job.bundle.tensor
        story = quiet(7, [job], faults=faults, relay=relay, room=room, steps=6, checkpoints=0, copies=0)
        ends_well(story)


def test_a_worker_has_all_its_ranks_on_one_node(jobs: list[WorldJob]) -> None:
    """Found once: a coordinator that moved while workers arrived had them started again on the node that
    found it first; of one worker each node had a rank, and for another neither had room."""
    faults = (MoveCoordinator(0.15, 0.3),)
    story = quiet(157, jobs[3:], faults=faults, room=4, steps=6, checkpoints=0, copies=0, saves=False)
    ends_well(replace(story, echoes=0.0))


@pytest.mark.parametrize("at", [0.5, 0.58])
def test_half_of_every_worker_has_come(jobs: list[WorldJob], at: float) -> None:
    """Found once: the node of the coordinator lost power while workers arrived. Those who had come, and two
    of three agents, did not notice it for seconds; of each worker the other rank came to the next
    coordinator, which gave all of them up, and the job ended before it had begun."""
    faults = (KillAgent(0.082, 0.57, node=2), MoveCoordinator(at, 0.013))
    story = quiet(1794874987802, jobs[3:], faults=faults, nodes=3, room=4, steps=6, checkpoints=0, copies=0)
    ends_well(replace(story, relay=False))


@pytest.mark.parametrize("stopped", [0.45, 0.55])
def test_what_a_stopped_coordinator_hears_may_be_old(jobs: list[WorldJob], stopped: float) -> None:
    """Found once: one of two nodes was cut off for a moment, the other lost power while the coordinator was
    stopped. What it had said before counted as said when the coordinator heard it, so the first node was
    given up because of the other: the job ended, although it came back."""
    cut, lost = Partition(2.2426, 4.45, pairs=((-1, 1), (0, 1))), LoseNode(2.52, 0.0, node=0)
    faults = (cut, StopCoordinator(2.2429, stopped), lost)
    story = replace(scenario(1794874988174, jobs), faults=faults, standing=False)
    ends_well(story)


def test_the_same_seed_is_the_same_story(jobs: list[WorldJob]) -> None:
    first, again = (World(scenario(3, jobs)).run() for _ in range(2))
    assert (first.digest, first.events) == (again.digest, again.events)


@pytest.mark.slow
def test_the_same_seed_is_the_same_story_in_another_process(jobs: list[WorldJob], tmp_path: Path) -> None:
    seeds = (3, 5)
    here = [World(scenario(seed, jobs)).run().digest for seed in seeds]
    code = (
        "import sys; from pathlib import Path; from tests.runtime.world.jobs import world_jobs;"
        "from tests.runtime.world.scenarios import scenario;"
        "from tests.runtime.world.world import World;"
        f"jobs = world_jobs(Path({str(tmp_path)!r}));"
        f"print([World(scenario(seed, jobs)).run().digest for seed in {seeds}])"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == str(here)


def _is_found(plant: planted.Plant, jobs: list[WorldJob], patch: pytest.MonkeyPatch, seeds: int) -> bool:
    plant(patch)
    return any(World(scenario(seed, jobs)).run().wrong for seed in range(seeds))


@pytest.mark.parametrize(
    "plant",
    [
        planted.count_steps_twice,
        planted.forget_rows,
        planted.old_reports,
        planted.old_messages_count,
    ],
)
def test_a_planted_fault_is_found(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch, plant: planted.Plant
) -> None:
    assert _is_found(plant, jobs, monkeypatch, 60), plant.__doc__


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        planted.nobody_leaves,
        planted.take_the_newest_step,
        planted.fresh_counts,
        planted.rows_of_anybody,
        planted.anybody_is_let_in,
        planted.given_up_counts,
    ],
)
def test_a_rare_planted_fault_is_found(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch, plant: planted.Plant
) -> None:
    assert _is_found(plant, jobs, monkeypatch, 300), plant.__doc__


def test_a_generation_that_is_not_written_down_is_missed(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a re-cut and the return of who had failed; no seed below 150 has such a story."""
    killed = KillWorker(2.0, worker=(1, 1))
    story = quiet(405, jobs[:1], faults=(), steps=60, nodes=4, recut="auto", checkpoints=0, copies=0)
    stories = [replace(story, faults=(killed, KillCoordinator(at, 0.01))) for at in (6.0, 6.5, 7.0)]
    for each in stories:
        outcome = ends_well(each)
        assert any("re-cut to" in line for line in outcome.story), told(each, outcome)
    planted.generations_are_forgotten(monkeypatch)
    assert any(World(each).run().wrong for each in stories)


def test_whoever_waits_for_layers_hears_that_the_boundary_has_moved(jobs: list[WorldJob]) -> None:
    """Found once: one worker had begun the next step, and another waited for its layers before it."""
    story = quiet(
        184,
        jobs[:1],
        faults=(KillWorker(2.5, worker=(1, 0)),),
        recut="always",
        steps=20,
        nodes=6,
        room=1,
    )
    outcome = World(story).run()
    assert not outcome.wrong, told(story, outcome)


def test_a_coordinator_that_starts_again_knows_that_workers_save(jobs: list[WorldJob]) -> None:
    """Found once: it ended the job well, and nobody had saved anything."""
    story = quiet(
        11,
        jobs[2:3],
        faults=(KillCoordinator(2.0, 0.3),),
        steps=12,
        checkpoints=0,
        saves=True,
    )
    for at in (2.0, 2.6, 2.7, 2.8):
        again = replace(story, faults=(KillCoordinator(at, 0.3),))
        ends_well(again)


@pytest.mark.parametrize("relay", [False, True])
def test_who_has_saved_and_ended_is_known_to_the_next_coordinator(jobs: list[WorldJob], relay: bool) -> None:
    """Found once: workers had said that they had saved, and their agents that they had ended, to a
    coordinator that was killed before it had heard, or written down, either. Nobody said it again, and the
    job ended with an error 30 s later."""
    plain = quiet(66, jobs[:1], faults=(), steps=6, checkpoints=0, copies=0, saves=True, nodes=3, relay=relay)
    plain = replace(plain, echoes=0.0)
    (ended,) = (line for line in World(plain).run().story if "the job has ended" in line)
    end = float(ended.split()[0])
    for who in range(6):
        # While they write: the next lines of the journal are theirs, one each.
        story = replace(plain, faults=(TearJournal(end - 0.02, 0.0, writes=who),))
        outcome = ends_well(story)
        assert any("in the middle of it" in line for line in outcome.story), told(story, outcome)
        (again,) = (line for line in outcome.story if "the job has ended" in line)
        assert float(again.split()[0]) < end + 5, told(story, outcome)


def test_a_coordinator_that_is_killed_after_the_end_does_not_end_the_job_again(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = quiet(
        7,
        jobs[2:3],
        faults=(),
        steps=6,
        checkpoints=0,
    )
    (ended,) = (line for line in World(plain).run().story if "the job has ended" in line)
    story = replace(plain, faults=(KillCoordinator(float(ended.split()[0]) + 0.001, 0.3),))
    assert not World(story).run().wrong
    planted.end_is_forgotten(monkeypatch)
    assert World(story).run().wrong


def test_steps_that_were_all_skipped_stay_so_when_the_coordinator_is_killed(jobs: list[WorldJob]) -> None:
    """Found once: such a job was told to have ended well, since the next coordinator counted from none."""
    plain = quiet(7, jobs[2:3], faults=(), steps=12, checkpoints=0, skipped=frozenset(range(12)))
    assert (World(plain).run().error or "").startswith("every step was skipped")
    for at in (0.95, 1.2, 1.35):
        outcome = World(replace(plain, faults=(KillCoordinator(at, 0.3),))).run()
        assert (outcome.error or "").startswith("every step was skipped"), outcome.story


@pytest.mark.parametrize(("resumes", "is_resumed"), [(1, False), (0, True)])
def test_a_job_that_has_lost_a_stage_goes_on_from_its_newest_intact_checkpoint(
    jobs: list[WorldJob], resumes: int, is_resumed: bool
) -> None:
    """By itself, or by a user on other nodes; in some of these worlds the newest one is torn."""
    for seed in range(4):
        story = replace(
            scenario(seed, jobs[2:3]),
            faults=(KillWorker(1.9, worker=(0, 1)), KillWorker(1.9, worker=(1, 1))),
            steps=40,
            nodes=2,
            room=2,
            wild=True,
            checkpoints=3,
            skipped=frozenset(),
            saves=True,
            resumes=resumes,
            is_resumed=is_resumed,
            building=0.0,
        )
        outcome = ends_well(story)
        assert outcome.resumes == 1


def test_a_job_that_ends_while_a_manifest_is_written(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: the last checkpoint was complete, and the thread that deletes older ones closed before."""
    lost = (KillWorker(3.0, worker=(0, 1)), KillWorker(3.0, worker=(1, 1)))
    story = quiet(
        7,
        jobs[2:3],
        faults=(SlowDisk(0.1, 30.0, node=-1), *lost),
        steps=40,
        wild=True,
        checkpoints=3,
        copies=0,
        resumes=0,
        is_resumed=True,
    )
    outcome = World(story).run()
    assert not outcome.wrong and outcome.error is None and outcome.resumes == 1, told(story, outcome)
    planted.files_are_closed_first(monkeypatch)
    assert World(story).run().wrong


def _with_copies(jobs: list[WorldJob], *faults: Fault) -> Scenario:
    """Four nodes of one worker, a copy of every stage in memory every four steps, and no checkpoints."""
    story = quiet(
        1, jobs[2:3], faults=faults, steps=40, nodes=4, room=1, wild=True, checkpoints=0, saves=True
    )
    return replace(story, resumes=1, is_resumed=False, copies=4, echoes=0.0)


def test_a_job_that_has_lost_a_stage_goes_on_from_copies_in_memory(jobs: list[WorldJob]) -> None:
    """It equals a plain loop from there on, as every settled step does."""
    story = _with_copies(jobs, KillWorker(1.9, worker=(0, 1)), KillWorker(1.9, worker=(1, 1)))
    outcome = World(story).run()
    assert not outcome.wrong and outcome.error is None and outcome.resumes == 1, told(story, outcome)


def test_copies_are_completed_while_workers_come_and_go(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: every kill, arrival and join gave up the copy under way, and the next one was named steps
    ahead, for a step at which it was due: with a copy every 4 steps the newest was 62 steps old."""
    told_row, ages = Service._tell_row, list[int]()  # pyright: ignore[reportPrivateUsage]

    def note_age(service: Service, order: TellRow) -> None:
        told_row(service, order)
        participants = service._job.participants  # pyright: ignore[reportPrivateUsage]
        newest = next(one for one in participants if isinstance(one, NeighbourCopies)).newest
        ages.append(order.row.step + 1 - (newest.step if newest else 0))

    monkeypatch.setattr(Service, "_tell_row", note_age)
    kills = [KillWorker(2.0 + 0.7 * number, worker=(number % 3, number // 3 % 2)) for number in range(40)]
    story = quiet(7, jobs[:1], faults=tuple(kills), steps=150, nodes=3, recut="off", checkpoints=0, copies=4)
    outcome = World(replace(story, echoes=0.0, saves=False)).run()
    assert not outcome.wrong and outcome.error is None and outcome.recoveries > 30, told(story, outcome)
    assert max(ages) <= 24, ages


def test_copies_outlive_the_nodes_of_a_stage(jobs: list[WorldJob]) -> None:
    """Two of these pairs of nodes have all workers of a stage; others hold copies of it."""
    resumes = 0
    for one, other in ((0, 2), (0, 3), (1, 2), (1, 3)):
        lost = LoseNode(1.9, node=one), LoseNode(1.9, node=other)
        story = _with_copies(jobs, *lost, NewNode(2.0), NewNode(2.0))
        outcome = ends_well(story)
        resumes += outcome.resumes
    assert resumes == 2


def test_a_copy_of_another_step_is_noticed(jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch) -> None:
    story = _with_copies(jobs, KillWorker(1.9, worker=(0, 1)), KillWorker(1.9, worker=(1, 1)))
    planted.old_copies_count(monkeypatch)
    (wrong,) = World(story).run().wrong
    assert "in a plain loop" in wrong, wrong


def test_a_worker_is_all_its_ranks(jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed: the others go with it, and each of the next ones gets the state of its own rank."""
    story = quiet(
        1, jobs[3:], faults=(KillWorker(1.9, worker=(0, 1)),), steps=40, nodes=4, copies=4, checkpoints=5
    )
    outcome = ends_well(story)
    assert "0:1 joins" in told(story, outcome)
    planted.donors_of_any_rank(monkeypatch)
    assert World(story).run().wrong


def test_ranks_do_not_fail_for_want_of_a_coordinator(jobs: list[WorldJob]) -> None:
    """Found once: a rank whose collective breaks since another one has left waited 3 s for word of that; then
    it took the error for its program's, although the coordinator was away."""
    faults = MoveCoordinator(1.4, 0.03), KillWorker(1.43, worker=(1, 1))
    for seed in (2, 8):
        story = quiet(seed, jobs[3:], faults=faults, steps=12, room=4, checkpoints=0, saves=False)
        story = replace(story, copies=0, echoes=0.0)
        ends_well(story)


def test_ranks_of_a_node_that_has_slept_through_the_end_do_not_fail(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: when they wake up their collectives are broken and there is no coordinator any more; they
    waited 30 s for word of it, and then took that for an error of their program."""
    stories = [
        quiet(
            seed,
            jobs[3:],
            faults=(StopNode(1.8, 20.0, node=node),),
            steps=30,
            nodes=3,
            room=4,
            relay=seed % 2 == 1,
            checkpoints=0,
            copies=0,
            echoes=0.0,
            saves=False,
        )
        for seed in (20, 21)
        for node in (0, 1)
    ]
    for story in stories:
        ends_well(story)
    planted.nobody_looks_for_the_coordinator(monkeypatch)
    assert any("raised StreamError" in wrong for story in stories for wrong in World(story).run().wrong)


def _goes_on_one_to_a_node(job: WorldJob, *faults: Fault) -> None:
    """With one worker on each of four nodes, and nothing but these faults."""
    story = quiet(7, [job], faults=faults, steps=30, nodes=4, room=1, checkpoints=0)
    ends_well(story)


def test_nobody_is_given_up_for_one_that_has_just_been_started(jobs: list[WorldJob]) -> None:
    """Found once: no step had been told, so it counted as one with a state; but others had made the step."""
    stop = StopWorker(0.956, 3.94, worker=(2, 0))
    for at in (2.3, 2.4):
        cut = Partition(at, 3.7, pairs=((-1, 1), (-1, 2), (0, 1), (0, 2)))
        story = replace(scenario(1794855237342, jobs), faults=(stop, cut), skipped=frozenset())
        story = replace(story, copies=0, echoes=0.0, saves=False, checkpoints=0, recut="off", steps=6)
        ends_well(story)


def test_nobody_is_given_up_for_a_peer_that_may_be_gone(jobs: list[WorldJob]) -> None:
    """Found once: a worker and its agent have no connection for a moment; its only peer is on a node that has
    just lost power, and is missed a second later."""
    _goes_on_one_to_a_node(
        jobs[2], LoseNode(2.0, node=3), KillAgent(3.9, 1.0, node=1), CutLine(3.95, worker=(0, 1))
    )


def test_nobody_is_given_up_for_a_peer_that_has_not_come_back(jobs: list[WorldJob]) -> None:
    """Found once: a node loses power and the coordinator starts again, so it does not know of that yet; then
    the peer's node does not reach it for a moment."""
    _goes_on_one_to_a_node(
        jobs[2], LoseNode(2.0, node=2), KillCoordinator(2.01, 0.02), Partition(4.8, 3.3, pairs=((-1, 3),))
    )


def _as_found(seed: int, jobs: list[WorldJob], *faults: Fault, **changes: Any) -> None:
    """The same story with nothing but the faults that matter ends well."""
    ordinary: dict[str, Any] = {"checkpoints": 0, "saves": False, "skipped": frozenset(), "echoes": 0.0}
    story = replace(scenario(seed, jobs), faults=faults, **(ordinary | {"relay": False} | changes))
    ends_well(replace(story, standing=False))


def test_a_process_that_was_sent_away_is_not_taken_for_the_one_that_trains(jobs: list[WorldJob]) -> None:
    """Found once: a coordinator moved while workers built their models, and had second processes started for
    them; those were refused, knocked all the same until they had built theirs, and the next coordinator took
    them for the workers of its journal. As each of them ended, one that trained was given up."""
    moved, torn = MoveCoordinator(2.730452480139753), TearJournal(2.744217117922205, 1.4798440665089634, 2)
    faults = (moved, torn, Stranger(9.191501037656897, worker=(0, 1)))
    _as_found(2434, jobs, *faults, nodes=3, room=6, steps=6, copies=0, building=10.0)


def test_a_process_that_was_just_started_is_not_taken_for_the_one_before_it(jobs: list[WorldJob]) -> None:
    """Found once: a worker was killed and started again, and then the coordinator. The next one took the new
    process for the one of its journal, which had a state: it did not wait for the only other one that had
    it, and the job ended."""
    killed = KillWorker(3.0759914166508984, worker=(1, 0))
    moved = MoveCoordinator(3.4268403284856985, 0.08166924755298399)
    _as_found(10365, jobs, killed, NewNode(3.0994100680838583), moved, steps=6, copies=3, building=10.0)


def test_the_end_of_a_process_is_not_that_of_another_in_its_place(jobs: list[WorldJob]) -> None:
    """Found once: a coordinator that was started again before the first step had a second process started
    for a worker that it had not heard of yet. When that worker was killed, so was the second process."""
    nodes = (NewNode(3.405098061544478), NewNode(3.405098061544478))
    coordinator, worker = (
        KillCoordinator(3.532552532017712, 0.009),
        KillWorker(3.836336889958547, worker=(0, 0)),
    )
    _as_found(7312, jobs, *nodes, coordinator, worker, nodes=6, room=1, steps=6, building=10.0)


def test_no_node_is_given_up_for_a_worker_that_may_be_gone(jobs: list[WorldJob]) -> None:
    """Found once: a worker without an agent disconnected, and was waited for, since the other node was not
    heard of either. Then that node was given up because of this worker, which had been killed."""
    faults = (
        StopAgent(2.3554196802038443, 5.4, node=1),
        StopWorker(2.5752581982007374, 3.07, worker=(1, 1)),
        Partition(4.5900124451798785, 0.811, pairs=((-1, 0), (-1, 1))),
        Partition(4.5981440359123, 5.139, pairs=((-1, 0), (0, 1))),
        KillWorker(4.598619252935039, worker=(2, 0)),
    )
    _as_found(5477, jobs, *faults, steps=60, copies=0, recut="off")


def test_a_report_that_is_said_again_does_not_count(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: a worker that had been asked to leave again counted as one that had left, and was not given
    up if it never did."""
    stories = [
        # It shows where the report is late by the right moment, which moves with what is said before.
        quiet(
            7, jobs[2:3], faults=(KillWorker(at / 100, worker=(0, 0)),), steps=12, checkpoints=0, echoes=0.2
        )
        for at in range(110, 170)
    ]
    with monkeypatch.context() as patch:
        planted.any_report_counts(patch)
        story, wrong = next((story, found) for story in stories for found in World(story).run().wrong)
    assert not World(story).run().wrong
    assert wrong.startswith("LeftGroup about generation 1 is said again in generation 2, and counts: ")


def test_a_share_of_a_step_that_was_run_again_does_not_count(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: step 8 was left out, so step 9 was run again; what a worker said then was stuck in its
    stopped agent, and it was given up: the row of step 9 had what it had said before."""
    stories = [
        quiet(
            7,
            jobs[:1],
            faults=(StopAgent(at / 1000, 11.0, node=2),),
            steps=12,
            nodes=4,
            relay=True,
            skipped=frozenset({8}),
            checkpoints=0,
            copies=0,
            echoes=0.0,
            recut="off",
            saves=False,
        )
        for at in range(1800, 2100, 20)
    ]
    with monkeypatch.context() as patch:
        planted.void_shares_count(patch)
        story, wrong = next((story, found) for story in stories for found in World(story).run().wrong)
    assert "step 9 has loss nan, and " in wrong
    ends_well(story)


def test_a_step_is_told_after_the_word_that_it_may_be_forgotten(jobs: list[WorldJob]) -> None:
    """Found once: a coordinator whose disk was full told a step, and was killed before it had said that it
    cannot write it down."""
    for at in range(30, 54, 3):
        faults = FullDisk(2.0, 4.0, node=-1), KillCoordinator(2.0 + at / 500, 0.01)
        story = quiet(7, jobs[2:3], faults=faults, steps=30, checkpoints=0, copies=0, echoes=0.0, saves=False)
        ends_well(story)


def test_a_story_is_told_in_few_words(jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch) -> None:
    planted.forget_rows(monkeypatch)
    found = next(found for seed in range(200) if World(found := scenario(seed, jobs)).run().wrong)
    small, outcome = shrunk(found)
    assert outcome.wrong and len(small.faults) <= min(2, len(found.faults))
    text = told(small, outcome)
    assert text.startswith(f"seed {found.seed}: ") and "WRONG: a coordinator begins with step" in text
