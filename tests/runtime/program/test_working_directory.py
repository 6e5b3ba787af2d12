"""A program that changes the working directory is found as before, and so is all that it names."""

import logging
import sys
from pathlib import Path

import pytest
import torch

from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.program.source_digest import changed_parts
from recycle_runtime.program.user_file import note_start

SOURCE = """\
import os
import sys

import torch

sys.path.insert(0, "lib_of_this_test")
from width_of_this_test import WIDTH
{leaves}

def layers():
    return [("first", torch.nn.Linear(WIDTH, WIDTH))]

def loss(output, target):
    return 3

def microbatch(index):
    return torch.zeros(1, WIDTH), torch.zeros(1, WIDTH)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr={rate})
"""
LEAVES = 'os.chdir("/")'
REMOVES = "os.remove(__file__)"


def loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rate: float = 0.1, leaves: str = LEAVES, width: int = 2
) -> Program:
    """By a name that is relative to the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "lib_of_this_test").mkdir(exist_ok=True)
    (folder / "lib_of_this_test" / "width_of_this_test.py").write_text(f"WIDTH = {width}\n")
    (folder / "leaving.py").write_text(SOURCE.format(leaves=leaves, rate=rate))
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.delitem(sys.modules, "width_of_this_test", raising=False)
    monkeypatch.chdir(folder)
    return load_program("leaving.py")


def test_its_source_is_known_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be read, and any change of it was resumed from in silence."""
    before = loaded(tmp_path, monkeypatch).source_digest
    assert Path.cwd() == Path("/")
    assert loaded(tmp_path, monkeypatch).source_digest == before
    assert changed_parts(before, loaded(tmp_path, monkeypatch, rate=0.2).source_digest) == ["optimizer"]
    other = loaded(tmp_path, monkeypatch, width=3).source_digest
    assert changed_parts(before, other) == ["width_of_this_test.py"]


def test_mistakes_in_it_are_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = loaded(tmp_path, monkeypatch)
    with pytest.raises(ProgramError, match=r"^leaving\.py:13: loss must return a tensor"):
        program.loss(None, None)


def test_weights_beside_it_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"first.weight": torch.ones(2, 2)}, tmp_path / "kept.pt")
    program = loaded(tmp_path, monkeypatch, leaves=f'{LEAVES}; WEIGHTS = "kept.pt"')
    assert program.weights is not None


def test_the_source_of_a_script_is_known_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import os\nos.chdir('/')\nRATE = 1\n")
    monkeypatch.chdir(tmp_path)
    note_start(Path("train.py"))
    monkeypatch.chdir("/")
    names = vars(loaded(tmp_path / "other", monkeypatch))["_functions"]
    digest = Program(Path("train.py"), names).source_digest
    assert "RATE=" in digest


def test_a_source_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name.startswith("recycle_runtime")]

    with caplog.at_level(logging.WARNING, "recycle_runtime"):
        loaded(tmp_path, monkeypatch)
        assert told() == []
        program = loaded(tmp_path, monkeypatch, leaves=REMOVES)
    assert program.source_digest == ""
    (line,) = told()
    assert line.startswith("leaving.py: its source cannot be read any more")
