"""Rules about the tree itself that neither ruff nor import-linter can state."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("recycle_compiler", "runtime", "tests", "bench")
    for path in (ROOT / folder).rglob("*.py")
)
GOLDEN = ROOT / "golden"
RUNTIME = ROOT / "runtime" / "recycle_runtime"


def test_every_golden_is_read() -> None:
    """By a test that names it, by a pattern over its folder, or as one plan of a golden spec."""
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != Path(__file__).name)
    goldens = (path.relative_to(GOLDEN) for path in sorted(GOLDEN.rglob("*")) if path.is_file())
    assert [str(name) for name in goldens if not is_named(name, code) and not is_plan_of_a_spec(name)] == []


def is_named(golden: Path, code: str) -> bool:
    whole, folder = golden.as_posix(), golden.parent.as_posix()
    return any(words in code for words in (f'"{whole}"', f'"{golden.stem}"', f'"{folder}/*'))


def is_plan_of_a_spec(golden: Path) -> bool:
    """`schedules/figure3.1.txt` is read by bench/diff_goldens.py when `specs/figure3.job` is there."""
    spec, _, failures = golden.stem.rpartition(".")
    return (
        golden.parent.name == "schedules"
        and failures.isdigit()
        and (GOLDEN / "specs" / f"{spec}.job").exists()
    )


def test_what_both_sides_share_needs_the_standard_library_alone() -> None:
    folder = RUNTIME / "plan"
    modules = [f"recycle_runtime.plan.{path.stem}" for path in sorted(folder.glob("*.py"))]
    loaded = modules_after(f"import {', '.join(modules)}")
    assert loaded - sys.stdlib_module_names - {"recycle_runtime"} <= modules_after("pass")


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after a statement."""
    script = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}", "PATH": ""},
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_after("import recycle_compiler.cli.main")
    assert loaded.isdisjoint(
        {"torch", "numpy", "rich", "lark", "pyomo", "highspy", "numba", "networkx", "jinja2"}
    )


def test_the_compiler_never_loads_torch() -> None:
    assert "torch" not in modules_after(
        "import recycle_compiler.planner.compile, recycle_compiler.cli.commands.compile"
    )


def test_check_loads_no_solver() -> None:
    job = next(iter(sorted((ROOT / "golden" / "specs").glob("*.job"))))
    loaded = modules_after(
        f"from recycle_compiler.cli.main import main; assert main(['check', {str(job)!r}]) == 0"
    )
    assert loaded.isdisjoint({"torch", "pyomo", "highspy", "numba", "rich", "networkx"})
    assert "lark" in loaded


_OF_EVERY_COMMAND = {"add_arguments", "run"}
_OF_BOTH_PROGRAMS = {"command_line", "main", "parse_arguments"}


@pytest.mark.parametrize("what", ["class", "def"])
def test_public_names_of_the_product_are_defined_once(what: str) -> None:
    places = defaultdict[str, list[str]](list)
    for path in SOURCES:
        if path.parts[len(ROOT.parts)] in ("recycle_compiler", "runtime"):
            for name in re.findall(rf"^{what} ([A-Za-z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
                places[name].append(str(path.relative_to(ROOT)))
    allowed = _OF_EVERY_COMMAND | _OF_BOTH_PROGRAMS
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in allowed}
    assert not twice, f"one name for several: {twice}; rename all but one"


def test_docstrings_begin_with_the_thing() -> None:
    """A noun phrase or a verb, not a question."""
    found: list[str] = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0] in ("What", "Whether", "How", "Who", "Why", "Which"):
                    found.append(f"{path.relative_to(ROOT)}: {' '.join(words[:8])}")
    assert not found
