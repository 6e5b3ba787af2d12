"""Fixtures of the tests of data."""

import pytest

from recycle_runtime.data import reading


@pytest.fixture
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first micro-batches are not drawn a second time to be compared, so that draws can be counted."""
    monkeypatch.setattr(reading, "COMPARED", 0)
