"""Workers hold the bytes that their plan says, at every instruction, and only a few messages beside them."""

import pytest

from bench.memory_use import PLANS, measure
from tests.runtime.training.compare import EXAMPLES


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("program", ["mlp", pytest.param("gpt", marks=pytest.mark.slow)])
def test_no_more_than_planned(name: str, program: str) -> None:
    techniques, failed = PLANS[name]
    uses = measure(str(EXAMPLES / f"{program}.py"), techniques, failed)
    assert len(uses) == 12 - len(failed)
    assert [use for use in uses if use.excess > 0] == []
    assert [use for use in uses if use.measured > use.planned] == []
    assert [use for use in uses if use.messages > use.room] == []
    assert min(use.measured for use in uses) > 0
