"""What a program's source says, in a line that tells which part of it has changed. Standard library only.

Comments, blank lines and the way it is laid out do not count. What it imports is not looked at.
"""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

_DIGITS = 12
_REST = "other statements"
_ODD = str.maketrans({" ": "_", "=": "_"})


def source_digest(path: Path) -> str:
    """`name=digest` for each definition of a file, by name; nothing if it cannot be read."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    parts: dict[str, str] = {}
    for node in tree.body:
        for name in _names(node):
            parts[name] = parts.get(name, "") + ast.dump(node)
    return " ".join(f"{name.translate(_ODD)}={_digest(text)}" for name, text in sorted(parts.items()))


def changed_parts(before: str, after: str) -> list[str]:
    """Names of what is not the same in two such lines, what was added and what is gone included."""
    first, second = (
        dict(word.split("=", 1) for word in line.split() if "=" in word) for line in (before, after)
    )
    changed = (name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    return sorted(_REST if name == _REST.translate(_ODD) else name for name in changed)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGITS]


def _names(node: ast.stmt) -> Iterator[str]:
    """What a statement defines."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        # A docstring.
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets):
        yield from (each.id for each in node.targets if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    else:
        yield _REST
