"""More than one fault at a time, faults while others recover, and the end of everything but the workers."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_runtime.launcher.supervisor import Supervisor
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.observers import Generation, Hello, JobEvent, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.recovery.watched import TINY, Drive, disturbed, processes_of

Fault = Callable[[Supervisor], None]


AT_ONCE = [
    ["kill=0:0@5.4", "kill=1:1@5.6"],
    ["kill=0:1@5.0", "kill=2:1@5.9"],
    ["kill=0:0@5.99", "kill=1:0@5.99", "kill=2:1@5.99"],
    ["exception=0:0@5.3", "exception=1:1@5.3"],
    ["exit=0:0@5.3", "kill=1:0@5.3", "kill=1:1@5.3"],
]
"""Other stages, the same stage, both; instruction 99 is the middle one."""


@pytest.mark.slow
@pytest.mark.parametrize("faults", AT_ONCE)
def test_at_once(tmp_path: Path, wide: str, faults: list[str]) -> None:
    places = [fault.partition("=")[2].partition("@")[0] for fault in faults]
    disturbed(tmp_path, wide, 60, faults, [f"{place}@8" for place in places])


WHILE = {
    "another leaves": (["kill=0:0@5", "kill=1:1@5.leave"], []),
    "another stands and meets the rest": (["kill=0:0@5", "kill=1:1@5.meet"], []),
    "two others meet the rest": (["kill=0:0@5", "kill=1:1@5.meet", "kill=2:1@5.meet"], []),
    "it is given state": (["kill=0:0@3", "kill=0:0@5.take"], ["0:0@4", "0:0@30"]),
    "another gives state": (["kill=1:0@3", "kill=0:0@5.give"], ["1:0@4"]),
    "a third one meets those two": (["kill=1:0@3", "kill=2:1@9.meet"], ["1:0@8"]),
    "a third one settles for the joiner": (["kill=1:0@3", "kill=2:1@8.settle"], ["1:0@7"]),
    "a joiner settles for the next": (
        ["kill=0:0@3", "kill=1:0@4", "kill=0:0@20.settle"],
        ["0:0@5", "1:0@25"],
    ),
    "gradients are summed": (["kill=0:1@5.{reduce}"], []),
    "gradients are summed, by two": (["kill=0:1@5.{reduce}", "kill=1:0@5.{reduce}"], []),
    "an exception in meeting": (["kill=0:0@5", "exception=1:1@5.meet"], []),
    "sockets break in meeting": (["kill=0:0@5", "socket=1:1@5.meet"], []),
    "sockets break while state is given": (["kill=1:0@3", "socket=0:0@5.give"], ["1:0@4"]),
}


def reduce_of(bundle: str) -> int:
    """The instruction that sums gradients: two before the end of a staggered stream."""
    return len(Bundle.read(bundle).stream(0, (0, 1))) - 3


def test_while(tmp_path: Path, wide: str) -> None:
    """One is gone, another is killed as it meets the rest, the first comes back and is killed once more."""
    faults = ["kill=0:0@5", "kill=1:1@5.meet", "kill=0:0@8.take"]
    outcome = disturbed(tmp_path, wide, 60, faults, ["0:0@7", "0:0@12"])
    assert len(outcome.faults) == len(faults)


@pytest.mark.slow
@pytest.mark.parametrize("case", WHILE)
def test_more_while(tmp_path: Path, wide: str, case: str) -> None:
    faults, returns = WHILE[case]
    faults = [fault.format(reduce=reduce_of(wide)) for fault in faults]
    outcome = disturbed(tmp_path, wide, 80, faults, returns)
    assert len(outcome.faults) == len(faults)


def coordinator(supervisor: Supervisor) -> None:
    supervisor.coordinator.process.send_signal(signal.SIGKILL)


def agent(supervisor: Supervisor) -> None:
    supervisor.agent.process.send_signal(signal.SIGKILL)


def both(supervisor: Supervisor) -> None:
    agent(supervisor)
    coordinator(supervisor)


def once_when(is_time: Callable[[ToObserver], bool], fault: Fault) -> Drive:
    done: list[ToObserver] = []

    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if not done and is_time(message):
            done.append(message)
            fault(supervisor)

    return drive


def at_step(step: int) -> Callable[[ToObserver], bool]:
    return lambda message: isinstance(message, StepRow) and message.step == step


def at_generation(number: int) -> Callable[[ToObserver], bool]:
    """It has been ordered, and nobody has begun yet."""
    return lambda message: isinstance(message, Generation) and message.number >= number


def at_event(words: str) -> Callable[[ToObserver], bool]:
    return lambda message: isinstance(message, JobEvent) and words in message.text


def at_start(message: ToObserver) -> bool:
    return isinstance(message, Hello)


FAULTS: list[Fault] = [coordinator, agent, both]
MOMENTS = {
    "in a run": at_step(6),
    "at the start": at_start,
    "in the first generation": at_generation(1),
    "in a recovery": at_generation(2),
    "at a fault": at_event("injected fault: kill of"),
    "at a return": at_event("is restarted"),
    "in the last step": at_step(38),
    "at the end": at_step(39),
}


def test_only_workers_are_left(tmp_path: Path, square: str) -> None:
    """Of a run that goes on while the coordinator, the agent and both of them start again."""
    faults = {4: coordinator, 14: agent, 24: both}

    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if isinstance(message, StepRow) and message.step in faults:
            faults[message.step](supervisor)

    disturbed(tmp_path, square, 40, ["kill=1:0@9"], ["1:0@16"], drive=drive)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_only_workers_are_left_then(tmp_path: Path, square: str, fault: Fault, moment: str) -> None:
    drive = once_when(MOMENTS[moment], fault)
    disturbed(tmp_path, square, 40, ["kill=1:0@8"], ["1:0@9"], drive=drive)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_again_and_again(tmp_path: Path, square: str, fault: Fault) -> None:
    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if isinstance(message, StepRow) and message.step % 40 == 20 and message.step < 200:
            fault(supervisor)

    disturbed(tmp_path, square, 220, ["kill=1:0@30", "kill=0:1@90"], ["1:0@50", "0:1@110"], drive=drive)


@pytest.mark.slow
def test_a_stage_without_workers_ends_the_run(tmp_path: Path, square: str) -> None:
    """With one sentence and status 1, and no process is left."""
    program = tmp_path / "program.py"
    program.write_text(Path(TINY).read_text())
    command = [sys.executable, "-m", "recycle_runtime.cli", "local", square, "--program", str(program)]
    command += ["--steps", "20", "--quiet", "--fault", "kill=0:1@5", "--fault", "kill=1:1@5"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(
        "recycle-run: error: every worker of stage 1 has failed: "
    )
    assert "Traceback" not in ended.stderr
    assert not processes_of(program)
