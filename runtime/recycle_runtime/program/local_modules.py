"""The user's own modules that a program imports: found in its source, by name, without importing anything.

Own are files below the program's folder, and those on the module search path that are neither installed nor
of the standard library. A folder with `*.dist-info` in it is one where packages were installed or unpacked.
What is imported inside functions counts; what a name is only known for at run time
(`importlib.import_module(name)`) is not found. Standard library only.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from recycle_runtime.program.user_file import absolute, folder_at_start

_MOST = 1000
"""Modules that are looked at."""
_OURS = ("recycle_runtime", "recycle_compiler", "torch")
_INSTALLED = ("site-packages", "dist-packages")
_Name = tuple[str, ...]


def local_modules(program: Path) -> dict[str, ast.Module]:
    """By their paths from where they are found, such as `models/blocks.py`; the program is not among them."""
    roots = _roots(program)
    found: dict[str, ast.Module] = {}
    waiting: list[tuple[Path, _Name]] = [(absolute(program), ())]
    while waiting and len(found) < _MOST:
        path, package = waiting.pop()
        tree = parsed(path)
        for name in () if tree is None else sorted(set(_imported(tree, package))):
            for part in range(1, len(name) + 1):
                place = _place(roots, name[:part])
                if place is None or place[0] in found or (module := parsed(place[1])) is None:
                    continue
                found[place[0]] = module
                inside = name[:part] if place[1].name == "__init__.py" else name[: part - 1]
                waiting.append((place[1], inside))
    return found


def parsed(path: Path) -> ast.Module | None:
    """None if it cannot be read."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _roots(program: Path) -> list[Path]:
    """Folders in which modules of the user are looked for, the program's own first."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    own = Path(__file__).resolve().parents[2]
    roots = [absolute(program).parent]
    for root in _search_path(program):
        is_own = not any(part in _INSTALLED for part in root.parts) and root.resolve() not in {
            *installed,
            *(path / "lib-dynload" for path in installed),
            own,
        }
        if is_own and root.is_dir() and root not in roots and not any(root.glob("*.dist-info")):
            roots.append(root)
    return roots


def _search_path(program: Path) -> Iterator[Path]:
    """Relative entries are meant from where the program was started, and from where it has gone since."""
    bases = [folder_at_start(program)]
    with suppress(FileNotFoundError):
        bases.append(Path.cwd())
    for entry in sys.path:
        yield from dict.fromkeys(base / entry for base in bases)


def _imported(tree: ast.Module, package: _Name) -> Iterator[_Name]:
    """Names of modules, and of what may be one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from ((*module, alias.name) for alias in node.names)


def _place(roots: list[Path], name: _Name) -> tuple[str, Path] | None:
    """The file of a module, and how it is called; a folder without `__init__.py` has none of its own."""
    if name[0] in sys.stdlib_module_names or name[0] in _OURS:
        return None
    for root in roots:
        for file in (PurePosixPath(*name, "__init__.py"), PurePosixPath(*name[:-1], f"{name[-1]}.py")):
            if (root / file).is_file():
                return str(file), root / file
    return None
