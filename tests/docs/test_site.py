"""The documentation site builds without a warning, and its reference says what the programs say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from recycle_compiler.cli.commands import COMMANDS as COMPILER_COMMANDS
from recycle_runtime.cli.commands import COMMANDS as RUNTIME_COMMANDS
from recycle_runtime.plan.isa import Opcode

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is a package of the `dev` extra")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_command_is_in_the_reference(site: Path) -> None:
    for program, commands in (("recyclec", COMPILER_COMMANDS), ("recycle-run", RUNTIME_COMMANDS)):
        page = (site / "reference" / f"{program}.html").read_text("utf-8")
        for command in commands:
            assert f"{program} {command}" in page


def test_every_opcode_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "instructions.html").read_text("utf-8")
    assert all(opcode.name in page for opcode in Opcode)


def test_functions_come_with_their_docstrings(site: Path) -> None:
    compiler = (site / "reference" / "python-compiler.html").read_text("utf-8")
    runtime = (site / "reference" / "python-runtime.html").read_text("utf-8")
    assert "Plans for 0 to" in compiler
    assert "evaluate" in runtime


def test_nothing_is_asked_of_other_machines(site: Path) -> None:
    """A page may link elsewhere, but loads nothing from there."""
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="(?:stylesheet|preconnect|icon)"[^>]+href="https?:'
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loads.search(page.read_text("utf-8"))] == []
