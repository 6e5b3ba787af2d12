"""However often a host is refused, a minute has a few lines about it."""

import logging

import pytest

from recycle_runtime.protocol.refusals import Refusals


class Clock:
    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_a_few_lines_then_how_many_there_were(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(logging.getLogger("refusals"), clock.now)
    for port in range(1000):
        refusals.tell("a stranger", f"10.0.0.1:{port}", "it does not know the token")
    refusals.tell("a stranger", "10.0.0.2:1", "it does not speak TLS")
    assert len(caplog.messages) == 6
    assert caplog.messages[0] == "refused a stranger at 10.0.0.1:0: it does not know the token"
    clock.seconds = 59.0
    refusals.look()
    assert len(caplog.messages) == 6
    clock.seconds = 60.0
    refusals.look()
    expected = "refused 995 more connections of 10.0.0.1 within 60 s; the last: it does not know the token"
    assert caplog.messages[6:] == [expected]
    refusals.tell("a stranger", "10.0.0.1:7", "it is back")
    assert caplog.messages[-1] == "refused a stranger at 10.0.0.1:7: it is back"


def test_hosts_without_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(logging.getLogger("refusals"), clock.now)
    for number in range(100_000):
        refusals.tell("a stranger", f"[fd00::{number:x}]:5", "nonsense")
    assert len(caplog.messages) == 105
    refusals.end()
    assert (
        caplog.messages[-1] == "refused 99895 more connections of other hosts within 0 s; the last: nonsense"
    )
    refusals.end()
    assert len(caplog.messages) == 106
