"""The verifier shares no code with the planner, so a mistake there cannot hide here."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import recycle_compiler.verifier

_ALLOWED = (
    "numpy",
    # The meaning of two times of a job: popularity drawn in one way.
    "recycle_compiler.ir.expert_messages",
    "recycle_compiler.ir.failure",
    "recycle_compiler.ir.job",
    "recycle_compiler.ir.layers",
    "recycle_compiler.verifier",
    "recycle_runtime.plan.bundle",
    "recycle_runtime.plan.isa",
    # The meaning of a stream; the planner finds out for itself what is left of W.
    "recycle_runtime.plan.overlap",
)
_FOLDER = Path(str(recycle_compiler.verifier.__file__)).parent


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def test_only_definitions_are_shared() -> None:
    modules = sorted(_FOLDER.glob("*.py"))
    assert len(modules) > 10
    for path in modules:
        for name in _imported(ast.parse(path.read_text())):
            known = any(name == allowed or name.startswith(f"{allowed}.") for allowed in _ALLOWED)
            assert known or name.split(".")[0] in sys.stdlib_module_names, f"{path.name} imports {name}"
