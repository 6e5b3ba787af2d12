"""Everything that can become of a worker, at several places of a step."""

from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.testing.faults import KINDS
from tests.runtime.recovery.watched import disturbed

LIMITS: dict[str, Any] = {"heartbeat_timeout": 3.0, "instruction_timeout": 5.0}


def test_each_kind_once(tmp_path: Path, wide: str) -> None:
    """One after the other, on worker after worker, each in the middle of a step."""
    places = ["0:0", "1:1", "2:0"]
    faults = [f"{kind}={places[number % 3]}@{3 + 30 * number}" for number, kind in enumerate(KINDS)]
    returns = [f"{places[number % 3]}@{4 + 30 * number}" for number, _ in enumerate(KINDS)]
    outcome = disturbed(tmp_path, wide, 30 * (len(KINDS) + 1), faults, returns, **LIMITS)
    assert {kind for kind, _, _ in outcome.faults} == set(KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_at_several_instructions(tmp_path: Path, square: str, kind: str) -> None:
    length = len(Bundle.read(square).stream(0, (1, 1)))
    positions = [0, 1, length // 3, length // 2, length - 3, length - 2, length - 1]
    faults = [f"{kind}=1:1@{3 + 30 * number}.{at}" for number, at in enumerate(positions)]
    returns = [f"1:1@{4 + 30 * number}" for number, _ in enumerate(positions)]
    disturbed(tmp_path, square, 30 * (len(positions) + 1), faults, returns, **LIMITS)
