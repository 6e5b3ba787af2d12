"""Scripts over processes: what they see equals a plain loop, whoever fails and whenever."""

import json
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.launcher.local import RunError, RunOptions, RunResult, run_local
from recycle_runtime.launcher.supervisor import supervised
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.observers import JobEnded
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.trainer.plainly import Seen, train_plainly

SCRIPTS = Path(__file__).resolve().parent / "scripts"
LOOP = str(SCRIPTS / "loop.py")
PER_STEP = 4


def run(
    bundle: str,
    *script: str,
    faults: tuple[str, ...] = (),
    returns: tuple[str, ...] = (),
    checkpoint: Path | None = None,
    resume: bool = False,
) -> RunResult:
    options = RunOptions(
        bundle=bundle,
        program="",
        steps=None,
        script=script,
        faults=faults,
        returns=returns,
        checkpoint=None if checkpoint is None else str(checkpoint),
        checkpoint_every=100 if checkpoint is None else 5,
        resume=resume,
        heartbeat_timeout=20.0,
        instruction_timeout=600.0,
    )
    return run_local(options)


def records(folder: Path) -> list[list[dict[str, Any]]]:
    """Records that the script of each process has written."""
    return [list(map(json.loads, path.read_text().splitlines())) for path in folder.glob("seen-*.jsonl")]


def check(seen: list[dict[str, Any]], plain: list[Seen], every: int = 1, rel: float = 1e-12) -> None:
    """One process has seen steps one after the other, and what a plain loop sees."""
    steps = [row for row in seen if row["step"] is not None]
    first = steps[0]["step"]
    assert [row["step"] for row in steps] == list(range(first, first + len(steps)))
    for row in steps:
        expected = plain[row["step"]]
        assert row["loss"] == pytest.approx(expected.loss, rel=rel)
        assert row["settled"] in (None, pytest.approx(expected.settled, rel=rel))
        assert row["settled"] is not None or row["step"] % 2
        best = min(seen.loss for seen in plain[: row["step"] + 1])
        assert row["kept"] == [pytest.approx(best, rel=rel), row["step"] + 1]
        if (row["step"] + 1) % every == 0:
            assert row["evaluated"] == pytest.approx(expected.evaluated, rel=rel)
    for row in seen[len(steps) :]:
        assert row["evaluated"] == pytest.approx(plain[steps[-1]["step"]].evaluated, rel=rel)


@pytest.mark.slow
def test_kills_and_joiners_at_awkward_moments(tmp_path: Path, square: str) -> None:
    """In user code between steps, during an evaluation, and in a step of the main worker."""
    assert Bundle.read(square).pipelines * Bundle.read(square).microbatches == PER_STEP
    steps = 36
    dying = ["--die", "1:0@3@body", "--die", "0:1@5@evaluate"]
    script = [LOOP, str(tmp_path), str(steps), "--evaluate-every", "1", "--sleep", "0.1", *dying]
    result = run(square, *script, faults=("kill=0:0@24",), returns=("1:0@4", "0:1@6", "0:0@25"))
    assert [row.step for row in result.steps] == list(range(steps))
    causes = [cause for recovery in result.recoveries for cause in recovery.causes]
    assert sum("killed by signal 9" in cause for cause in causes) == 3
    seen, plain = records(tmp_path), train_plainly(steps, PER_STEP)
    assert len(seen) >= 5, "no worker joined before the end"
    for process in seen:
        check(process, plain)
    # All numbers are the same to the last bit wherever they are read, and one worker speaks for all.
    for step in range(steps):
        told = [row for process in seen for row in process if row["step"] == step]
        assert len({row["loss"] for row in told}) == len({row["evaluated"] for row in told}) == 1
        assert len({str(row["settled"]) for row in told if row["settled"] is not None}) <= 1
        assert sum(row["main"] for row in told) <= 1
    assert sum(process[-1]["step"] is None for process in seen) >= 2
    results = {process[-1]["evaluated"] for process in seen if process[-1]["step"] is None}
    assert len(results) == 1


@pytest.mark.slow
def test_a_coordinator_that_is_killed(tmp_path: Path, square: str) -> None:
    """The next coordinator is asked for the answers that scripts still wait for."""
    steps, killed = 14, {2, 6, 10}
    script = (LOOP, str(tmp_path), str(steps), "--evaluate-every", "1", "--sleep", "0.1")
    job = RunOptions(
        bundle=square,
        program="",
        steps=None,
        script=script,
        workers_per_node=4,
        state=tmp_path / "state",
        heartbeat_timeout=20.0,
        instruction_timeout=600.0,
    )
    with supervised(job) as supervisor:
        for message in supervisor.news():
            if isinstance(message, StepRow) and message.step in killed:
                killed.remove(message.step)
                supervisor.coordinator.process.kill()
            elif isinstance(message, JobEnded):
                assert message.error is None and message.steps == steps
    assert not killed
    plain = train_plainly(steps, PER_STEP)
    for process in records(tmp_path):
        check(process, plain)
        assert len(process) == steps + 1


@pytest.mark.slow
def test_an_early_stop(tmp_path: Path, square: str) -> None:
    plain = train_plainly(30, PER_STEP)
    target = min(seen.loss for seen in plain[:12]) * (1 + 1e-9)
    last = next(step for step, seen in enumerate(plain) if seen.loss < target)
    result = run(square, LOOP, str(tmp_path), "30", "--stop-below", repr(target), faults=("kill=1:1@2",))
    assert [row.step for row in result.steps] == list(range(last + 1))
    for process in records(tmp_path):
        check(process, plain, every=100)


@pytest.mark.slow
def test_a_resumed_script(tmp_path: Path, square: str) -> None:
    """Goes on with what it kept, in the body of the loop after the last step of the checkpoint."""
    plain = train_plainly(14, PER_STEP)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, steps in ((first, "7"), (second, "14")):
        folder.mkdir()
        checkpoint = tmp_path / "checkpoints"
        run(square, LOOP, str(folder), steps, checkpoint=checkpoint, resume=folder is second)
    for process in (*records(first), *records(second)):
        check(process, plain, every=100)
    assert {process[0]["step"] for process in records(second)} == {6}


@pytest.mark.slow
def test_a_loop_that_was_left_early(tmp_path: Path, square: str) -> None:
    """A worker that joins begins in the loop that the others are in, and so does a run that goes on."""
    leave, steps = 4, (60, 63)
    plain = train_plainly(steps[-1], PER_STEP)
    for number, total in enumerate(steps):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = (LOOP, str(folder), str(total), "--leave", str(leave), "--sleep", "0.3")
        faults, returns = ((), ()) if number else (("kill=1:1@6",), ("1:1@7",))
        checkpoint = tmp_path / "checkpoints"
        run(square, *script, faults=faults, returns=returns, checkpoint=checkpoint, resume=bool(number))
        for process in records(folder):
            check(process, plain, every=100)
            assert all(row["loop"] == (row["step"] >= leave) for row in process if row["step"] is not None)
    assert len(records(tmp_path / "0")) == 5, "no worker joined before the end"


@pytest.mark.slow
def test_a_loader_with_processes_of_its_own(tmp_path: Path, square: str) -> None:
    """Through several epochs, which end in the middle of a step, and a worker that fails and returns."""
    steps = 20
    plain = train_plainly(steps, PER_STEP, loads=True)
    script = (LOOP, str(tmp_path), str(steps), "--loader", "1", "--sleep", "0.1")
    run(square, *script, faults=("kill=1:0@6",), returns=("1:0@8",))
    for process in records(tmp_path):
        check(process, plain, every=100)
    assert len(records(tmp_path)) >= 4


@pytest.mark.slow
def test_other_data_from_a_step_on(tmp_path: Path, square: str) -> None:
    """Also for workers that fail and return around it, and for a run that goes on behind it."""
    switch, steps = 6, (9, 13)
    plain = train_plainly(steps[-1], PER_STEP, switch=switch)
    for number, total in enumerate(steps):
        folder = tmp_path / str(number)
        folder.mkdir()
        script = (LOOP, str(folder), str(total), "--switch", str(switch), "--sleep", "0.1")
        faults, returns = ((), ()) if number else (("kill=1:1@5", "kill=0:0@6"), ("1:1@6", "0:0@7"))
        checkpoint = tmp_path / "checkpoints"
        run(square, *script, faults=faults, returns=returns, checkpoint=checkpoint, resume=bool(number))
        for process in records(folder):
            check(process, plain, every=100)
    assert {process[0]["step"] for process in records(tmp_path / "1")} == {steps[0] - 1}


ON_STEP = """
def batches(seed):
    while True:
        yield data(0)
def loss(output, target):
    return torch.nn.functional.mse_loss(output, target)
def on_step(report):
    with open(FILE, "a") as file:
        file.write(f"{report.step} {report.loss!r}\\n")
    return report.step == 4
"""


@pytest.mark.slow
def test_a_program_file_hears_of_steps_and_may_stop(tmp_path: Path, pair: str) -> None:
    program, heard = tmp_path / "program.py", tmp_path / "heard"
    program.write_text(f"{HEAD}FILE = {str(heard)!r}\n{ON_STEP}")
    options = RunOptions(pair, str(program), 9, faults=("kill=1:0@2",), heartbeat_timeout=20.0)
    result = run_local(options)
    assert [row.step for row in result.steps] == list(range(5)) and result.totals == [5]
    told = {line for line in heard.read_text().splitlines()}
    assert told == {f"{row.step} {row.loss!r}" for row in result.steps}


BAD = {
    "raises": ("boom(3)", "bad.py:13: the script of worker", 'raise ValueError(f"boom {number}")'),
    "never makes a trainer": ("pass", "it ended without making a recycle.Trainer", ""),
    "exits with a status": ("trainer(); sys.exit(3)", "exited with 3", ""),
    "does not make a step": (
        "for step in trainer().steps(3): pass",
        "bad.py:15: step 0 was not made",
        "",
    ),
    "makes a step outside": ("trainer().step(data)", "bad.py:15: trainer.step is called once", ""),
    "asks for other steps": (
        "t = trainer()\nfor step in t.steps(3 + t.worker[0]): t.step(data)",
        "asks for",
        "",
    ),
    "ends earlier": (
        "t = trainer()\nfor step in t.steps(3):\n    t.step(data)\n    if t.worker[0]: break",
        "ended before step 1, and that of worker",
        "",
    ),
    "evaluates on one worker": (
        "t = trainer()\nfor step in t.steps(3):\n    t.step(data)\n"
        "    if t.is_main: t.evaluate(data, microbatches=2)",
        "evaluates after 1 steps, and that of worker",
        "",
    ),
    "gives other streams": (
        "t = trainer()\nfor step in t.steps(3): t.step(iter([data(0)] * 99))",
        "bad.py:16: trainer.step was given other data than before, and a value of type list_iterator",
        "",
    ),
    "uses the model that it has given": (
        "mine = layers()\nt = recycle.Trainer(mine, loss=torch.nn.functional.mse_loss, optimizer=optimizer)\n"
        "for step in t.steps(3):\n    t.step(data)\n    if step: mine[1][1].state_dict()",
        "bad.py:19: blocks.1.weight belongs to the model that recycle.Trainer was given, and not to the",
        "",
    ),
    "has an optimizer in place of a function": (
        "recycle.Trainer(layers, optimizer=torch.optim.SGD(layers()[0][1].parameters(), lr=0.1))",
        "bad.py:15: optimizer must be a function, got SGD ( Parameter Group 0",
        "",
    ),
    "is no Python": ("for for", "bad.py:15: syntax error", ""),
}
HEAD = """\
import sys
import torch
import recycle_runtime as recycle
def layers():
    return [(f"blocks.{number}", torch.nn.Linear(2, 2)) for number in range(2)]
def data(index):
    return torch.ones(1, 2), torch.ones(1, 2)
def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
def trainer():
    return recycle.Trainer(layers, loss=torch.nn.functional.mse_loss, optimizer=optimizer)
def boom(number):
    raise ValueError(f"boom {number}")

"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BAD)
def test_a_bad_script_ends_with_a_sentence(tmp_path: Path, pair: str, kind: str) -> None:
    body, sentence, traceback = BAD[kind]
    script = tmp_path / "bad.py"
    script.write_text(HEAD + body + "\n")
    with pytest.raises(RunError) as error:
        run(pair, str(script))
    assert sentence in str(error.value)
    assert str(error.value).count("Traceback") == bool(traceback)
    assert "recycle_runtime" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["trainer()", "trainer(); sys.exit(0)"])
def test_a_script_without_a_step_is_no_mistake(tmp_path: Path, pair: str, body: str) -> None:
    script = tmp_path / "bad.py"
    script.write_text(HEAD + body + "\n")
    assert run(pair, str(script)).steps == []
