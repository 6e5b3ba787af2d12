"""The coordinator as a process: whatever a client says that makes no sense ends its connection only."""

import logging
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.planner.compile import compile_job
from recycle_runtime.coordinator.events import EndJob, Rename
from recycle_runtime.coordinator.service import JobOptions, Service
from recycle_runtime.protocol.channel import Channel
from recycle_runtime.protocol.codec import ProtocolError, WireError
from recycle_runtime.protocol.framing import FramingSession, new_token
from recycle_runtime.protocol.messages.agents import AgentJoin, Heartbeat, RunningProcess
from recycle_runtime.protocol.messages.generations import BundleRequest, Failed, Join, Leave
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.observers import Hello, JobEnded, JobEvent, Observe, ToObserver
from recycle_runtime.protocol.messages.store import StoreGet, StoreOpen
from recycle_runtime.protocol.messages.wire import FromWorker, Message
from recycle_runtime.testing.timetable import FaultTimetable, PlannedReturn
from tests.runtime.coordinator.fake_job import HEAVY
from tests.runtime.coordinator.lone_service import Job
from tests.runtime.coordinator.lone_service import Line as KeptLine
from tests.runtime.protocol.raw_client import RawClient
from tests.runtime.protocol.test_messages import ANY_MESSAGE, some

TOKEN = new_token()


class EndedError(Exception):
    """Nobody needs the coordinator any more."""


class Running:
    """A coordinator in a thread; if the thread dies, `check` says so."""

    def __init__(self, folder: Path) -> None:
        plan = folder / "heavy.plan"
        plans = compile_job(parse_job_text(HEAVY, "heavy.job"))
        plan.write_bytes(bundle_bytes(source=HEAVY, plans=plans))
        self.plan = str(plan)
        options = JobOptions(
            self.plan, steps=10, host="127.0.0.1", port=0, token=TOKEN, state=folder / "state"
        )
        self.service = Service(options)
        self.error: list[BaseException] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.service.run(self._stop)
        except EndedError:
            pass
        except BaseException as error:
            self.error.append(error)

    def _stop(self) -> None:
        if self._is_over.is_set():
            raise EndedError

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        assert not self.error, self.error

    def client(self, *messages: Message) -> Channel:
        channel = Channel("127.0.0.1", self.service.port, TOKEN)
        for message in messages:
            channel.send(message)
        return channel

    def check(self) -> None:
        """An observer is served."""
        assert not self.error, self.error
        observer = self.client(Observe(None))
        assert observer.receive() == Hello(10, 0)
        observer.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    made = Running(tmp_path_factory.mktemp("service"))
    yield made
    made.end()


def is_hung_up_on(channel: Channel) -> bool:
    """After whatever else was sent to it."""
    try:
        while True:
            channel.receive()
    except WireError:
        return True


NONSENSE = [
    {"type": "join"},
    {"type": "join", "member": [[0, 0], 0], "pid": "x", "generation": 0, "asked": 0, "is_training": False},
    {"type": "step_done", "step": 1},
    {},
]


@pytest.mark.parametrize("fields", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_ends_a_connection_and_not_the_job(
    running: Running, fields: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    # A command that ran in this process before may have sent the lines of the package elsewhere.
    logger = logging.getLogger("recycle_runtime.protocol.server")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.WARNING, logger.name):
            client = RawClient(running.service.port, TOKEN)
            client.say(fields)
            assert client.is_hung_up_on()
            client.close()
    finally:
        logger.removeHandler(caplog.handler)
    assert any("refused a client at 127.0.0.1:" in record.getMessage() for record in caplog.records)
    running.check()


@pytest.mark.parametrize(
    "message",
    [
        Join(Member((7, 0), 0), 1, 0, 0, False),
        Join(Member((0, 0), 3), 1, 0, 0, False),
        Heartbeat(),
        StoreGet("a"),
    ],
    ids=["no such worker", "no such rank", "no agent", "no store"],
)
def test_messages_that_nobody_expects(running: Running, message: Message) -> None:
    assert is_hung_up_on(running.client(message))
    running.check()


def test_a_member_that_asks_for_plans_that_are_not_there(running: Running) -> None:
    member = running.client(Join(Member((1, 1), 0), 5, 0, 0, False))
    assert isinstance(member.receive(), Leave)
    member.send(BundleRequest(99))
    assert is_hung_up_on(member)
    running.check()


class Line:
    """A client without a socket."""

    address = "nowhere"

    def __init__(self) -> None:
        self.is_open = True
        self._session = FramingSession(TOKEN, "server", "", "")

    def send(self, message: Message) -> None:
        self._session.frame(message)

    def close(self) -> None:
        self.is_open = False

    def drain(self) -> None: ...


FIRST: st.SearchStrategy[Message] = st.sampled_from(
    [
        *(Join(Member((pipeline, stage), 0), 1, 0, 0, False) for pipeline in range(3) for stage in range(3)),
        AgentJoin("a", 2, ()),
        Observe(None),
        StoreOpen(),
    ]
)


SAID = ANY_MESSAGE | st.sampled_from(get_args(FromWorker)).flatmap(some)


@settings(max_examples=150)
@given(clients=st.lists(FIRST, min_size=1, max_size=12), said=st.lists(st.tuples(SAID, st.integers())))
def test_any_messages_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    running: Running,
    clients: list[Message],
    said: list[tuple[Message, int]],
) -> None:
    """Clients that know the token may end the job by what they report, but never break the coordinator."""
    state = tmp_path_factory.mktemp("state")
    service: Any = Service(
        JobOptions(running.plan, steps=10, host="127.0.0.1", port=0, token=TOKEN, state=state)
    )
    lines = [Line() for _ in clients]
    try:
        speeches = [
            *zip(lines, clients, strict=True),
            *((lines[n % len(lines)], message) for message, n in said),
        ]
        for line, message in speeches:
            try:
                service.message(line, message)
            except ProtocolError:
                line.close()
                service.closed(line)
            service.tick()
    finally:
        service.close()


@pytest.fixture
def alone(running: Running, tmp_path: Path) -> Generator[Any]:
    """A coordinator without connections, of which one worker should return at once."""
    hooks = FaultTimetable(returns=(PlannedReturn((1, 0), 0),))
    made: Any = Service(
        JobOptions(
            running.plan,
            steps=10,
            host="127.0.0.1",
            port=0,
            token=TOKEN,
            state=tmp_path / "state",
            hooks=hooks,
        )
    )
    yield made
    made.close()


def events(told: list[ToObserver]) -> list[str]:
    return [message.text for message in told if isinstance(message, JobEvent)]


def test_who_returns_gets_the_place_that_its_successor_left(alone: Any) -> None:
    told: list[ToObserver] = []
    alone.watch(told.append)
    alone.message(Line(), AgentJoin("node/1", 1, (RunningProcess(Member((0, 0), 0), 7),)))
    alone.tick()
    alone._rename(Rename(Member((0, 0), 0), Member((1, 0), 0)))
    alone._ticked = float("-inf")
    alone.tick()
    assert events(told) == [], "there is no room"
    # The job has begun: nobody else is to be started.
    alone._job.members.expected.clear()
    alone.message(Line(), AgentJoin("node/2", 1, ()))
    for _ in range(3):
        alone._ticked = float("-inf")
        alone.tick()
    assert events(told) == ["1:0 is restarted as 0:0, which has taken its place"]


def test_what_is_wrong_with_a_program_is_told_once(alone: Any) -> None:
    told: list[ToObserver] = []
    alone.watch(told.append)
    lines = [Line(), Line()]
    for number, line in enumerate(lines):
        alone.message(line, Join(Member((0, number), 0), 7 + number, 0, 0, is_training=False))
    for line in lines:
        alone.message(line, Failed(0, "worker 0:0: empty.py: it defines nothing", False, False))
    assert events(told) == []
    assert [message.error for message in told if isinstance(message, JobEnded)] == [
        "worker 0:0: empty.py: it defines nothing"
    ]


@pytest.mark.parametrize("is_observed", [False, True])
def test_an_observer_that_is_late_hears_of_the_end(tmp_path: Path, square: str, is_observed: bool) -> None:
    """One whose connection a coordinator before this one has taken along; but it may be gone for good."""
    job = Job(tmp_path, square, relay=False, is_observed=is_observed)
    job.service._end_job(EndJob(None, no_plan=False))
    assert job.service.is_over is not is_observed
    observer = KeptLine(job.service)
    job.service.message(observer, Observe(0))
    assert observer.sent[-1] == job.service.ended
    assert job.service.is_over
    job.service.close()


def test_an_observer_that_never_comes_is_not_awaited_for_long(tmp_path: Path, square: str) -> None:
    job = Job(tmp_path, square, relay=False, is_observed=True)
    job.service._end_job(EndJob(None, no_plan=False))
    job.pass_time(40.0)
    assert job.service.is_over
    job.service.close()
