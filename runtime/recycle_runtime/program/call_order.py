"""Order in which a module's forward uses its parts, read from its source: models register them in any order.

    self.norm = LayerNorm(...)                      for block in self.blocks:
    self.blocks = ModuleList(...)                       hidden = block(hidden)
                                                    return self.norm(hidden)

Here `blocks` comes first. Arguments of a call come before what is called, methods of the module where they
are called. A look at a part (`self.norm is None`, `self.norm.weight.dtype`) is no use of it.
"""

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

_OF_LISTS = frozenset(("children", "forward", "items", "modules", "named_children", "values"))
"""Methods of a part whose call is a use of it."""


def uses(module: nn.Module) -> list[str]:
    """Names of parts, with dots for parts of parts; empty if there is no source to read."""
    reader = _Reader(module)
    reader.read("forward")
    return list(dict.fromkeys(reader.found))


def in_order_of_use(names: Sequence[str], used: Sequence[str]) -> list[str]:
    """Names of parts by their first use, or as they are if one is not used as far as is known."""
    ranks = {
        name: next(number for number, each in enumerate(used) if f"{each}.".startswith(f"{name}."))
        for name in names
        if any(f"{each}.".startswith(f"{name}.") for each in used)
    }
    return sorted(names, key=ranks.__getitem__) if len(ranks) == len(names) else list(names)


class _Reader(ast.NodeVisitor):
    """Goes through a function as it runs, as far as that can be seen."""

    def __init__(self, module: nn.Module) -> None:
        self.found: list[str] = []
        self._kind = type(module)
        self._parts = {name for name, _ in module.named_modules(remove_duplicate=False) if name}
        self._own = ""
        """Name of the module in the function."""
        self._read: set[str] = set()

    def read(self, name: str) -> None:
        """A method of the module, once."""
        function = getattr(self._kind, name, None)
        tree = _tree(function) if callable(function) and name not in self._read else None
        if tree is None or not tree.args.args:
            return
        self._read.add(name)
        outside, self._own = self._own, tree.args.args[0].arg
        for statement in tree.body:
            self.visit(statement)
        self._own = outside

    def visit_Call(self, node: ast.Call) -> None:
        for each in (*node.args, *node.keywords):
            self.visit(each)
        self.visit(node.func)

    def visit_comprehension_of(self, node: Any) -> None:
        """The rows come before what is made of them."""
        made = (each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.comprehension))
        for each in (*node.generators, *made):
            self.visit(each)

    visit_ListComp = visit_GeneratorExp = visit_SetComp = visit_DictComp = visit_comprehension_of  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> None:
        for each in (node.left, *node.comparators):
            if not isinstance(each, ast.Attribute):
                self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        for each in (node.test, *node.body, *node.orelse):
            if each is not node.test or not isinstance(each, ast.Attribute):
                self.visit(each)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        words = self._words(node)
        if words is None:
            self.generic_visit(node)
            return
        known = [count for count in range(len(words), 0, -1) if ".".join(words[:count]) in self._parts]
        rest = words[known[0] :] if known else words
        if known and (not rest or (len(rest) == 1 and rest[0] in _OF_LISTS)):
            self.found.append(".".join(words[: known[0]]))
        elif len(words) == 1 and not known:
            self.read(words[0])

    def _words(self, node: ast.AST) -> list[str] | None:
        """Of a name that begins with the module itself."""
        words: list[str] = []
        while isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        return words if isinstance(node, ast.Name) and node.id == self._own and words else None


@functools.cache
def _tree(function: Callable[..., Any]) -> ast.FunctionDef | None:
    """Of torch's own functions there is nothing to learn."""
    function = inspect.unwrap(function)
    if getattr(function, "__module__", "").partition(".")[0] == "torch":
        return None
    try:
        made = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return None
    return made if isinstance(made, ast.FunctionDef) else None
