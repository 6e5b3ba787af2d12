"""A script's part of a checkpoint is read as it was written."""

import json
from pathlib import Path

import pytest

from recycle_runtime.checkpoint.script_state import ScriptState
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

ROW = StepRow(4, 0.5, 0.1, 3, "0", learning_rate=0.25)


@pytest.mark.parametrize("settled", [None, StepSettled(4, 1.5, is_skipped=False)])
def test_it_is_read_as_it_was_written(tmp_path: Path, settled: StepSettled | None) -> None:
    state = ScriptState(b"kept", ROW, settled, ((0, 0), (1, 3)))
    state.write(tmp_path)
    assert ScriptState.read(tmp_path) == state
    assert json.loads((tmp_path / "script.json").read_text())


def test_there_was_no_script(tmp_path: Path) -> None:
    assert ScriptState.read(tmp_path) is None
