"""The line that says how far a simulation is."""

import pytest

from recycle_compiler.cli.simulate_progress import Meter


def test_it_fills_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with Meter("simulating gpt3", 4, shown=True, clock=lambda: now[0]) as meter:
        meter.begin("ours")
        assert meter.line().startswith("simulating gpt3")
        assert meter.line().endswith("ours  0 s")
        meter.advance()
        now[0] = 65.0
        meter.advance()
        assert meter.line().endswith("ours  1 min 05 s")
    written = capsys.readouterr().err
    assert written.count("\r") == 3
    assert written.endswith("\r\x1b[K")


def test_it_is_silent_where_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    with Meter("simulating gpt3", 0, shown=False) as meter:
        meter.begin("ours")
        meter.advance()
    assert capsys.readouterr().err == ""
