"""Digest of a program's source, in a line that tells which part of it has changed. Standard library only.

Each definition of the program's file has a digest, and so has each of the user's own modules that it imports,
as a whole. Comments, docstrings of modules, blank lines and the way it is laid out do not count.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from recycle_runtime.program.local_modules import local_modules, parsed
from recycle_runtime.program.user_file import absolute

_DIGITS = 12
_SHORT = 8
_REST = "other statements"
_ODD = str.maketrans({" ": "_", "=": "_"})
_KNOWS_MODULES = ".modules"
"""In lines of versions that look at modules; no definition is called so."""


def source_digest(path: Path) -> str:
    """`name=digest` for each definition of a file and each module that it imports, by name; nothing if the
    file cannot be read."""
    tree = parsed(absolute(path))
    if tree is None:
        return ""
    modules = local_modules(path)
    texts = {name: _text(module) for name, module in modules.items()} | _definitions(tree)
    words = [f"{name.translate(_ODD)}={_digest(text)}" for name, text in sorted(texts.items())]
    return " ".join([f"{_KNOWS_MODULES}={len(modules)}", *words])


def changed_parts(before: str, after: str) -> list[str]:
    """Names of what is not the same in two such lines, what was added and what is gone included."""
    first, second = (
        dict(word.split("=", 1) for word in line.split() if "=" in word) for line in (before, after)
    )
    names = first.keys() | second.keys()
    if not (_KNOWS_MODULES in first and _KNOWS_MODULES in second):
        # One of them is of a version that has looked at the program's file alone.
        names = {name for name in names if "." not in name}
    changed = (name for name in names - {_KNOWS_MODULES} if first.get(name) != second.get(name))
    return sorted(_REST if name == _REST.translate(_ODD) else name for name in changed)


def short_digest(line: str) -> str:
    """Of such a line as a whole, for people to compare."""
    return _digest(line)[:_SHORT]


def source_name(line: str) -> str:
    """Digest of a line, with the version of Python that made the line: two processes compare both."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{version} {short_digest(line)}" if line else version


def _definitions(tree: ast.Module) -> dict[str, str]:
    parts: dict[str, str] = {}
    for node in tree.body:
        for name in _names(node):
            parts[name] = parts.get(name, "") + ast.dump(node)
    return parts


def _text(tree: ast.Module) -> str:
    """All that is defined in a module, in its order."""
    return "".join(ast.dump(node) for node in tree.body if any(_names(node)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGITS]


def _names(node: ast.stmt) -> Iterator[str]:
    """Names that a statement defines."""
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
