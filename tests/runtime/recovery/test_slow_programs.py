"""Programs that take their time, and one that never comes to an end: who is killed, and what is said."""

import re
from pathlib import Path

import pytest

from tests.runtime.recovery.watched import TINY, Outcome, check, run
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

SLOW = """
_batches = batches


def batches(seed):
    import time

    time.sleep(12.0)
    for number, item in enumerate(_batches(seed)):
        if number == 9:
            sum(range(150_000_000))
        yield item
"""
NEVER_ENDS = """
def loss(output, target):
    import time

    while True:
        time.sleep(0.1)  # stuck here
"""


def tried(folder: Path, bundle: str, more: str, steps: int, **limits: float) -> tuple[str, Outcome]:
    program = changed(folder, TINY, more)
    return program, run(folder / "run", bundle, program, steps, **limits)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_slow_first_item_and_a_held_interpreter(tmp_path: Path, square: str) -> None:
    """The one is longer than any later instruction may be, the other than a heartbeat may stop."""
    program, outcome = tried(tmp_path, square, SLOW, 6, heartbeat_timeout=0.5, instruction_timeout=10.0)
    check(tmp_path / "run", outcome, train_alone(program, 2, 4, 6))
    assert outcome.causes == ["start"]


def test_workers_that_get_stuck_alike(tmp_path: Path, square: str) -> None:
    limits = {"instruction_timeout": 10.0, "first_step_timeout": 10.0}
    program, outcome = tried(tmp_path, square, NEVER_ENDS, 6, **limits)
    assert outcome.error is not None
    assert re.match(
        r"workers 0:1, 1:1 got stuck alike, so the program is at fault: worker [01]:1 was stuck in "
        r"instruction \d+ of step 0 for \d+\.\d s and was killed:\n",
        outcome.error,
    )
    line = Path(program).read_text().splitlines().index("        time.sleep(0.1)  # stuck here") + 1
    assert f'  File "{program}", line {line}, in loss\n    time.sleep(0.1)  # stuck here' in outcome.error
