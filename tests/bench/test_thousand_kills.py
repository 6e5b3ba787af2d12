"""Workers that the benchmark kills, and its report of recorded runs; nothing is trained here."""

import random
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.kill_picture import kill_picture, kill_steps
from bench.kill_records import (
    LEFT_OUT,
    RecordFile,
    RunRecord,
    TimedRecovery,
    TimedRow,
    WorkerKill,
    compare,
    markdown,
    missing_and_twice,
    pauses,
    read_run,
    read_runs,
    report_rows,
    step_seconds,
)
from bench.thousand_kills import PIPELINES, STAGES, Holders, choose_victims, compile_plans, may_be_killed
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.plan_book import PlanBook
from recycle_runtime.protocol.messages.observers import Generation, JobEvent, Recovered

GRID = [(pipeline, stage) for stage in range(STAGES) for pipeline in range(PIPELINES)]
PIDS = {worker: number for number, worker in enumerate(GRID, 100)}


def generation(number: int, workers: list[tuple[int, int]]) -> Generation:
    return Generation(number, 0, "0 0", tuple(workers), 0, 1)


def recovered(number: int) -> Recovered:
    return Recovered(number, ("start",), 0, 0, 0.0, "0 0", 0.0, 0.0, 0.0, 0.0)


def trained(holders: Holders, number: int, pids: dict[tuple[int, int], int]) -> None:
    holders.take(generation(number, list(pids)), pids)
    holders.take(recovered(number), {})


def test_nobody_holds_state_before_the_job_trains() -> None:
    holders = Holders()
    holders.take(generation(1, GRID), PIDS)
    assert holders.workers == set()
    holders.take(recovered(1), {})
    assert holders.workers == set(GRID)


def test_a_killed_worker_counts_again_when_another_process_of_it_trains() -> None:
    holders = Holders()
    trained(holders, 1, PIDS)
    holders.kill((0, 0), PIDS[0, 0])
    assert (0, 0) not in holders.workers
    # A generation that was ordered before the kill, and heard of after it.
    trained(holders, 2, PIDS)
    assert (0, 0) not in holders.workers
    trained(holders, 3, PIDS | {(0, 0): 200})
    assert (0, 0) in holders.workers


def test_a_joiner_holds_nothing_before_it_trains() -> None:
    holders = Holders()
    others = {worker: pid for worker, pid in PIDS.items() if worker != (2, 1)}
    trained(holders, 1, others)
    holders.take(generation(2, list(others)), PIDS)
    holders.take(recovered(2), {})
    assert holders.workers == set(others)


def test_workers_in_a_new_generation_count_once_it_trains() -> None:
    holders = Holders()
    trained(holders, 1, {worker: PIDS[worker] for worker in GRID[1:]})
    holders.take(generation(2, GRID), PIDS)
    assert holders.workers == set(GRID[1:])
    holders.take(recovered(1), {})
    assert holders.workers == set(GRID[1:])
    holders.take(recovered(2), {})
    assert holders.workers == set(GRID)


def test_a_worker_that_is_about_to_move_does_not_count_for_its_stage() -> None:
    holders = Holders()
    trained(holders, 1, PIDS)
    holders.take(JobEvent("move 0:0 to 2:1, 1:0 to 1:1 saves 15.5 % of 0.421 s a step: moved"), {})
    assert holders.workers == set(GRID) - {(0, 0), (1, 0)}


def test_the_last_holder_of_a_stage_is_spared() -> None:
    holders = [(0, 0), (0, 1), (1, 1)]
    assert may_be_killed(holders, GRID) == [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert may_be_killed(holders, [(0, 0), (0, 1)]) == []
    assert may_be_killed([], GRID) == []


@given(st.sets(st.sampled_from(GRID)), st.sets(st.sampled_from(GRID)), st.integers(0, 1000))
def test_every_stage_keeps_a_holder(
    holders: set[tuple[int, int]], running: set[tuple[int, int]], seed: int
) -> None:
    before = {stage for _, stage in holders & running}
    victims = choose_victims(random.Random(seed), holders, running)
    assert len(set(victims)) == len(victims) <= 2
    assert set(victims) <= running
    assert {stage for _, stage in (holders & running) - set(victims)} == before


def test_training_and_joining_workers_are_killed_alone_and_in_pairs() -> None:
    chance, holders = random.Random(0), set(GRID[:-1])
    chosen = [choose_victims(chance, holders, GRID) for _ in range(200)]
    assert {len(victims) for victims in chosen} == {1, 2}
    assert any(GRID[-1] in victims for victims in chosen)
    assert {worker for victims in chosen for worker in victims} == set(GRID)


def test_every_number_of_failures_on_each_stage_has_a_plan(tmp_path: Path) -> None:
    compile_plans(tmp_path)
    book = PlanBook(Bundle.read(str(tmp_path / "kills.plan")))
    for first in range(1, PIPELINES + 1):
        for second in range(1, PIPELINES + 1):
            live = [(pipeline, 0) for pipeline in range(first)] + [
                (pipeline, 1) for pipeline in range(second)
            ]
            chosen = book.assign(live)
            assert chosen is not None and chosen.is_exact


def rows(*ends: float, first: int = 0) -> tuple[TimedRow, ...]:
    return tuple(TimedRow(at, step, 8.0 - step / 10, 6) for step, at in enumerate(ends, first))


def recovery(at: float, *causes: str) -> TimedRecovery:
    return TimedRecovery(at, causes, 1, 0.25, leaving=0.125, regroup=0.25)


KILLED = "0:1 was killed by signal 9"


def test_a_pause_is_what_rows_are_apart_without_the_step_itself() -> None:
    kill = WorkerKill(2.5, (0, 1), "training")
    run = RunRecord(rows(0, 1, 2, 5, 6), (kill,), (recovery(4.0, KILLED),), None)
    (pause,) = pauses(run, 1.0)
    assert pause == ((kill,), 2.0, 1.125, 0.125, 0.25)


def test_two_kills_before_training_goes_on_make_one_pause() -> None:
    kills = (WorkerKill(2.5, (0, 1), "training"), WorkerKill(4.25, (1, 1), "training"))
    recoveries = (recovery(4.0, KILLED), recovery(6.0, "1:1 was killed by signal 9"))
    (pause,) = pauses(RunRecord(rows(0, 1, 2, 7), kills, recoveries, None), 1.0)
    assert pause == (kills, 4.0, 1.125, 0.25, 0.5)


def test_a_kill_outside_the_group_is_no_pause() -> None:
    kills = (WorkerKill(0.5, (0, 1), "joining"), WorkerKill(2.5, (0, 1), "training"))
    returned = recovery(1.75, "0:1 joins")
    assert returned.is_planned and not returned.is_kill
    assert (
        recovery(4.0, KILLED, "1:1 arrives").is_kill and not recovery(4.0, KILLED, "1:1 arrives").is_planned
    )
    run = RunRecord(rows(0, 1, 2, 5), kills, (recovery(4.0, KILLED),), None)
    assert [pause.kills for pause in pauses(run, 1.0)] == [kills[1:]]


def test_a_pause_that_a_run_ends_in_is_left_out() -> None:
    run = RunRecord(rows(0, 1), (WorkerKill(1.5, (0, 1), "training"),), (recovery(2.0, KILLED),), None)
    assert pauses(run, 1.0) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two series of ten steps; the second in two runs, with a kill that takes two seconds in the first."""
    _write(tmp_path / "undisturbed-0.jsonl", range(10), lambda step: float(step))
    _write(tmp_path / "disturbed-0.jsonl", range(8), lambda step: step + 2.0 * (step > 6), killed=True)
    _write(tmp_path / "disturbed-1.jsonl", range(8, 10), lambda step: step + 100.0)
    return tmp_path


def _write(path: Path, steps: range, at: Callable[[int], float], *, killed: bool = False) -> None:
    record = RecordFile(path)
    record.write("recovered", at(steps[0]) - 0.5, causes=("start",), undone=0, repeated=0.0)
    for step in steps:
        record.write("row", at(step), step=step, loss=8.0 - step / 4 + (killed and step == 7) / 64, live=6)
        if killed and step == 6:
            record.write("kill", 6.5, worker=(0, 1), state="training", pid=1)
            fields = {"undone": 1, "repeated": 0.5, "leaving": 0.25, "regroup": 0.5}
            record.write("recovered", 8.0, causes=(KILLED,), **fields)
            record.write("event", 8.0, text="0:1 is started again on vm")
    record.write("end", at(steps[-1]), error=None)
    record.close()


def test_the_report_of_recorded_runs(folder: Path) -> None:
    quiet, disturbed = read_runs(folder, "undisturbed"), read_runs(folder, "disturbed")
    assert step_seconds(quiet) == 1.0
    found = dict(report_rows(quiet, disturbed))
    assert found["workers killed with SIGKILL"] == "1, 0 of them while they joined"
    assert found["time lost in a pause: median, worst"] == "2.000 s, 2.000 s"
    assert found["of that, detection (median)"] == "0.750 s"
    assert found["steps missing, counted twice"] == "0, 0"
    assert found["largest difference of losses, over the 10 steps of both"].startswith("1.6e-02 at step 7 ")
    assert found["steps per second, undisturbed"] == "1.00"
    assert found["steps per second, under kills"] == "0.50 (50 %)"
    assert markdown([("a", "1")]) == "|  | measured |\n| --- | ---: |\n| a | 1 |\n"


def test_a_record_that_was_cut_off_is_read_up_to_there(folder: Path) -> None:
    text = (folder / "undisturbed-0.jsonl").read_text()
    run = read_run(text[: text.index('"step": 4')])
    assert [row.step for row in run.rows] == [0, 1, 2, 3]
    assert run.error == "the run was cut off"
    assert run.steps == 0 and len(run.rows) < LEFT_OUT


def test_nothing_recorded_is_reported_too(tmp_path: Path) -> None:
    assert dict(report_rows([], []))["kills per hour survived"] == "0"
    ElementTree.fromstring(kill_picture([], []))


def test_steps_that_are_missing_or_counted_twice() -> None:
    first, second = RunRecord(rows(0, 1, 2), (), (), None), RunRecord(rows(5, 6, first=2), (), (), None)
    assert missing_and_twice([first, second]) == (0, 1)
    assert missing_and_twice([first, RunRecord(rows(5, first=5), (), (), None)]) == (2, 0)


def test_losses_are_compared_where_both_have_them() -> None:
    assert compare({0: 4.0, 1: 2.0, 2: 1.0}, {0: 4.5, 1: 2.5}) == (2, 0.5, 1, 0.25)


def test_the_picture_has_a_tick_for_every_kill(folder: Path) -> None:
    quiet, disturbed = read_runs(folder, "undisturbed"), read_runs(folder, "disturbed")
    assert list(kill_steps(disturbed)) == [7]
    picture = kill_picture(quiet, disturbed)
    root = ElementTree.fromstring(picture)
    assert root.attrib["width"] == "800"
    assert picture.count("<polyline") == 2
    # One in the legend.
    assert picture.count('stroke="#d1495b"') == 2
