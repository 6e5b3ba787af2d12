"""An agent settles where relative paths lead before workers run the user's code, which may go elsewhere."""

import os
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from recycle_runtime.cli.main import main
from recycle_runtime.protocol.access import Access
from recycle_runtime.protocol.messages.agents import StartProcess
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.worker.options import ProcessOptions
from tests.runtime.checkpoint.runs import JOB, plans

LEAVING = """
import os
import torch
os.chdir("/")

def layers():
    torch.manual_seed(0)
    return [(f"layer{{i}}", torch.nn.Linear(2, 2, dtype=torch.float64)) for i in range(4)]

def loss(output, target):
    return (output - target).square().mean()

def microbatch(index):
    return torch.full((1, 2), index % 3, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr={rate})
"""


def test_workers_get_absolute_paths(square: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(square, tmp_path / "x.plan")
    (tmp_path / "x.py").touch()
    (tmp_path / "token").write_text("t" * 32)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "address").write_text("127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    seen: list[ProcessOptions] = []
    states: list[Path] = []

    class Forking:
        def __init__(self, options: Any, life: Any) -> None:
            states.append(options.state)
            self._life = life

        def run(self) -> int:
            return self._life(StartProcess(Member((0, 0), 0), ()), 0, None)

    def preload(*, checkpoints: bool) -> None:
        assert checkpoints

    def work(options: ProcessOptions, *others: Any) -> int:
        seen.append(options)
        return 5

    monkeypatch.setattr("recycle_runtime.agent.agent.Agent", Forking)
    monkeypatch.setattr("recycle_runtime.agent.preload.preload", preload)
    monkeypatch.setattr("recycle_runtime.trainer.program_file.work_with_program", work)
    argv = ["agent", "x.plan", "--program", "x.py", "--coordinator", "./address", "--token-file", "token"]
    argv += ["--workers-per-node", "1", "--state", "state", "--save", "saved", "--checkpoint", "kept"]
    (tmp_path / "state").mkdir()
    assert main(argv) == 5
    (told,) = seen
    assert states == [tmp_path / "state"]
    assert told.bundle == str(tmp_path / "x.plan")
    # What is wrong in it is told by the name that the user has given; `load_program` knows where it is.
    assert told.program == "x.py"
    assert (told.save, told.checkpoint) == (str(tmp_path / "saved"), str(tmp_path / "kept"))
    assert told.address_file == str(tmp_path / "address")
    # A token file is read again for each connection.
    assert isinstance(told.token, Access)
    monkeypatch.chdir("/")
    (tmp_path / "token").write_text("u" * 32)
    assert told.token.tokens() == ("u" * 32,)
    assert told.memory is not None
    for file in told.memory.files:
        os.close(file)


SCRIPT = """
import sys
import recycle_runtime as recycle
import leaving

trainer = recycle.Trainer(leaving.layers(), optimizer=leaving.optimizer, loss=leaving.loss)
for step in trainer.steps(int(sys.argv[1])):
    trainer.step(leaving.microbatch)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", [["--program", "leaving.py", "--steps", "{steps}"], ["train.py", "{steps}"]])
def test_a_run_whose_code_goes_elsewhere(
    what: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All steps were made, and then nothing could be written; what had changed was not noticed."""
    plans(tmp_path / "x.plan", JOB)
    monkeypatch.chdir(tmp_path)
    for steps, rate, code in ((4, 0.1, 0), (6, 0.2, 1), (6, 0.1, 0)):
        (tmp_path / "leaving.py").write_text(LEAVING.format(rate=rate))
        (tmp_path / "train.py").write_text(SCRIPT)
        argv = ["local", "x.plan", "--checkpoint", "kept", "--checkpoint-every", "2", "--save", "saved"]
        argv += ["--heartbeat-timeout", "20", *(["--resume"] if steps > 4 else [])]
        assert main([*argv, *(word.format(steps=steps) for word in what)]) == code
        said = capfd.readouterr().err
        assert ("made by a program with another source" in said) is bool(code), said
        assert len(list((tmp_path / "saved").glob("worker-*.pt"))) == 4
