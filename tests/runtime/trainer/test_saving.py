"""The model that a script saves over processes is that of a plain loop, whoever fails meanwhile."""

from pathlib import Path

import pytest
import torch

import recycle_runtime as recycle
from recycle_runtime.checkpoint.checkpoint_folder import CheckpointFolder
from recycle_runtime.launcher.local import RunError
from tests.runtime.trainer.plainly import train_plainly
from tests.runtime.trainer.test_scripts import HEAD, LOOP, PER_STEP, check, records, run


def are_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    assert sorted(found) == sorted(expected)
    return all(torch.allclose(found[name], expected[name], rtol=1e-12, atol=1e-12) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "per_step"), [("square", PER_STEP), ("sharded", 6)])
def test_saves_with_kills_around_them(
    tmp_path: Path, request: pytest.FixtureRequest, job: str, per_step: int
) -> None:
    """A writer fails in a save, another worker before one; the run is resumed from what was saved. Also where
    no worker has the whole state of its optimizer, and nobody but the owners of shards steps them."""
    bundle, plain = str(request.getfixturevalue(job)), train_plainly(10, per_step)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    script = [LOOP, str(first), "8", "--save-every", "2", "--sleep", "0.1", "--die", "1:1@4@body"]
    result = run(bundle, *script, faults=("kill=0:0@4.save",), returns=("0:0@5",))
    assert [row.step for row in result.steps] == list(range(8))
    # Whether 0:0 is back before the end or is just joining then, the run ends.
    assert sum("killed by signal 9" in cause for each in result.recoveries for cause in each.causes) == 2
    for process in records(first):
        check(process, plain, every=100)
    kept_folder = CheckpointFolder(first / "kept")
    # The second try has a name of its own; what there was of the first is gone.
    assert kept_folder.names() == ["step-00000002", "step-00000004.1", "step-00000006", "step-00000008"]
    found, damaged = kept_folder.look()
    assert not damaged
    for complete in found:
        saved = dict(recycle.CheckpointWeights(first / "kept" / complete.name))
        assert are_close(saved, plain[complete.manifest.step - 1].state)
    assert are_close(torch.load(first / "whole.pt", weights_only=True), plain[7].state)

    run(bundle, LOOP, str(second), "10", checkpoint=first / "kept", resume=True)
    for process in records(second):
        check(process, plain, every=100)
    assert {process[0]["step"] for process in records(second)} == {7}


@pytest.mark.slow
def test_what_cannot_be_written_raises_on_all_workers(tmp_path: Path, pair: str) -> None:
    """A script may go on without it; one that does not ends with a sentence."""
    (tmp_path / "file").touch()
    body = f"""
t = trainer()
for step in t.steps(2):
    t.step(data)
    try:
        t.save("{tmp_path}/file/kept")
    except recycle.SaveError as error:
        t.print(error)
t.save("{tmp_path}/file")
"""
    script = tmp_path / "bad.py"
    script.write_text(HEAD + body)
    with pytest.raises(RunError) as error:
        run(pair, str(script))
    assert f"bad.py:23: cannot save to {tmp_path}/file: {tmp_path}/file: file exists" in str(error.value)
    assert "Traceback" not in str(error.value)
