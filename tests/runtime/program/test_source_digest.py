"""Changes of a program since a checkpoint was made by it."""

from pathlib import Path

import pytest

from recycle_runtime.program.source_digest import changed_parts, source_digest

SOURCE = """
import torch

RATE = 0.1

def loss(output, target):
    return (output - target).square().mean()

if RATE > 1:
    raise ValueError
"""


def changed(tmp_path: Path, old: str, new: str) -> list[str]:
    path = tmp_path / "program.py"
    lines: list[str] = []
    assert old in SOURCE
    for source in (SOURCE, SOURCE.replace(old, new)):
        path.write_text(source)
        lines.append(source_digest(path))
    return changed_parts(*lines)


def test_words_for_people_do_not_count(tmp_path: Path) -> None:
    assert changed(tmp_path, "RATE = 0.1", "RATE = (0.1)  # as before") == []
    assert changed(tmp_path, "import torch", "# what for\n\nimport torch") == []


def test_what_changed_is_named(tmp_path: Path) -> None:
    assert changed(tmp_path, "0.1", "0.2") == ["RATE"]
    assert changed(tmp_path, "square", "abs") == ["loss"]
    assert changed(tmp_path, "RATE > 1", "RATE > 2") == ["other statements"]
    assert changed(tmp_path, "def loss", "def other") == ["loss", "other"]


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert source_digest(tmp_path / "none.py") == ""
    (tmp_path / "none.py").write_bytes(b"\xff(")
    assert source_digest(tmp_path / "none.py") == ""


def test_unpacked_packages_are_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants thousands of modules read in every process, nor told that one of them has changed."""
    program = tmp_path / "program.py"
    program.write_text("import own_blocks, unpacked_package\n")
    for name, module in (("own", "own_blocks"), ("packages", "unpacked_package")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{module}.py").write_text("WIDTH = 8\n")
        monkeypatch.syspath_prepend(folder)
    (tmp_path / "own" / "own_blocks.egg-info").mkdir()
    (tmp_path / "packages" / "unpacked_package-1.0.dist-info").mkdir()
    assert "own_blocks.py=" in source_digest(program)
    assert "unpacked_package" not in source_digest(program)
