"""A coordinator, or an agent, that is started in the folder of a job that has ended."""

import threading
import time
from pathlib import Path

import pytest

from recycle_runtime.agent.agent import Agent, AgentOptions, JobOverError
from recycle_runtime.agent.watch import WatchLimits
from recycle_runtime.checkpoint.manifest import origin_of
from recycle_runtime.cli.main import main
from recycle_runtime.coordinator.journal import FILE, Journal
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.address import parse_address
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.framing import TOKEN, new_token
from recycle_runtime.protocol.heartbeat_board import Board
from recycle_runtime.protocol.job_over import is_over, mark_over
from recycle_runtime.protocol.messages.agents import AgentJoin, JobOver, StartProcess
from recycle_runtime.protocol.messages.observers import JobEnded
from tests.runtime.cli.ended_jobs import ENDS, coordinator, started_again, wait_for_nobody, write_end


def send_agents(folder: Path, count: int, token: str) -> list[object]:
    """So many come, when there is a coordinator; what each hears first."""
    while (where := parse_address(_text(folder / "address"))) is None:
        time.sleep(0.01)
    lines = [Channel(*where, token) for _ in range(count)]
    for number, line in enumerate(lines):
        line.send(AgentJoin(f"node{number}", 2, ()))
    heard: list[object] = [line.receive() for line in lines]
    for line in lines:
        line.close()
    return heard


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("ended", "steps", "code", "words"),
    [
        ("well", 9, 0, "is finished: all 9 steps are made; for another job use another --state"),
        ("well", 20, 1, "is finished after 9 steps, and 20 are asked for: resume from its checkpoint with"),
        ("badly", 9, 1, "has ended: the loss is not finite; start it again with another --state"),
        (
            "with a checkpoint",
            9,
            1,
            "has ended: terminated; kept/step-00000004 has the first 4 steps: resume from it with --resume",
        ),
    ],
)
def test_a_coordinator_says_so_and_sends_all_agents_away(
    ended: str,
    steps: int,
    code: int,
    words: str,
    tmp_path: Path,
    square: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = new_token()
    monkeypatch.setenv(TOKEN, token)
    write_end(tmp_path / "state", ENDS[ended])
    mark_over(tmp_path / "state")
    argv = coordinator(square, tmp_path / "state", steps)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(argv)))
    thread.start()
    # It would wait a minute for them.
    assert send_agents(tmp_path / "state", 2, token) == [JobOver(), JobOver()]
    thread.join()
    assert codes == [code]
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert is_over(tmp_path / "state")


def test_a_coordinator_that_ended_before_it_had_told_everybody_says_nothing(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(started_again(square, tmp_path / "state", monkeypatch)) == 0
    assert capsys.readouterr().err == ""
    assert is_over(tmp_path / "state")


@pytest.mark.parametrize(("end", "how"), [(ENDS["well"], "has ended"), (None, "is under way")])
def test_another_job_is_not_taken_for_this_one(
    end: JobEnded | None,
    how: str,
    tmp_path: Path,
    square: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was finished, they said, and nothing was trained."""
    monkeypatch.setenv(TOKEN, new_token())
    state, job = tmp_path / "state", origin_of(Bundle.read(square)).job
    write_end(state, end, job="0" * len(job))
    if end is not None:
        mark_over(state)
    argv = ["coordinator", square, "--steps", "9", "--listen", "127.0.0.1:0", "--state", str(state)]
    before = (state / FILE).read_bytes()
    # Twice: whoever is refused does not keep the folder.
    for _ in range(2):
        assert main(argv) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{state}: another job {how} there, not that of this plan (job 000" in line
        assert line.endswith(f"{job} here): use another --state for this one")
    assert (state / FILE).read_bytes() == before
    assert is_over(state) is (end is not None)


def test_a_finished_job_needs_no_plan_that_was_made_for_it(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy of its folder without them was told to be one of a job that cannot go on."""
    wait_for_nobody(monkeypatch)
    for name, end in (("finished", ENDS["well"]), ("running", None)):
        (tmp_path / name).mkdir()
        journal = Journal(tmp_path / name / FILE)
        journal.write(bundle="gone.plan")
        places = [(0, 0), (0, 1), (1, 0)]
        journal.write(generation=1, step=0, places=places, plan=[1, 0, 0, 0], roles=places)
        if end is not None:
            journal.write(ended=end)
        journal.close()
    assert main(coordinator(square, tmp_path / "finished")) == 0
    assert capsys.readouterr().err == ""
    assert main(coordinator(square, tmp_path / "running")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"recycle-run: error: {tmp_path}/running/gone.plan: no such file or directory; ")


def test_the_same_job_is_known(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = origin_of(Bundle.read(square)).job
    assert main(started_again(square, tmp_path / "state", monkeypatch, job=job)) == 0
    assert capsys.readouterr().err == ""


def test_a_job_that_has_never_begun_may_begin_there(
    tmp_path: Path, square: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, new_token())
    monkeypatch.setattr("recycle_runtime.cli.commands.coordinator._START_SECONDS", 0.0)
    assert main(coordinator(square, tmp_path / "state")) == 1
    assert not is_over(tmp_path / "state")


def idle(order: StartProcess, line: int, board: Board) -> int:
    return 0


def test_an_agent_that_comes_later_does_not_wait(tmp_path: Path) -> None:
    mark_over(tmp_path)
    address = tmp_path / "address"
    # Nobody listens at a port of the discard service on this machine.
    address.write_text("127.0.0.1:9")
    options = AgentOptions(
        "a.plan",
        host="127.0.0.1",
        port=9,
        token=new_token(),
        workers_per_node=2,
        state=tmp_path / "node",
        limits=WatchLimits(),
        address_file=str(address),
    )
    agent = Agent(options, idle)
    with pytest.raises(JobOverError, match="the job has ended"):
        agent.run()
