"""Signals that ask a process to end, heard from others or from its parent."""

import os
import signal
from collections.abc import Generator

import pytest

from recycle_runtime.cli.signals import Stopped, StopRequests, stop_requests, stopping_on_signals
from recycle_runtime.launcher.kept_process import PASSED_ON


@pytest.fixture
def deaf() -> Generator[None]:
    """A process whose parent hears these signals in its place."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in PASSED_ON}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def hearing() -> Generator[None]:
    """A process that hears them, however these tests were started: nohup ignores one of them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in PASSED_ON}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "terminated"), (signal.SIGHUP, "hung up")])
@pytest.mark.usefixtures("deaf")
def test_what_a_parent_passes_on_is_told_by_its_name(number: signal.Signals, word: str) -> None:
    requests = StopRequests()
    with stop_requests(requests):
        os.kill(os.getpid(), number)
        assert requests.number is None
        os.kill(os.getpid(), PASSED_ON[number])
    assert (requests.number, requests.why()) == (number, word)


@pytest.mark.usefixtures("deaf")
def test_it_is_heard_before_requests_are() -> None:
    with pytest.raises(Stopped) as stopped, stopping_on_signals():
        os.kill(os.getpid(), PASSED_ON[signal.SIGTERM])
    assert stopped.value.number == signal.SIGTERM


@pytest.mark.usefixtures("hearing")
def test_a_process_that_hears_itself_needs_no_parent() -> None:
    before = [signal.getsignal(number) for number in PASSED_ON.values()]
    with stop_requests(StopRequests()):
        assert [signal.getsignal(number) for number in PASSED_ON.values()] == before
