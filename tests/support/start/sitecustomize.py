"""Start of a process that a test has started: torch's compiler is loaded by those alone that compile.

Every optimizer of torch imports `torch._dynamo` to say that nothing of it is compiled, which takes half of
the CPU time that a worker needs before its first step. Here these words do nothing until something else of
that package is asked for; from then on it is the real one.
"""

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


class NotYetLoaded(ModuleType):
    """Stands for the package until it is used."""

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Nothing is traced."""

    @staticmethod
    def disable(fn: Callable[..., Any], recursive: bool = True, **options: object) -> Callable[..., Any]:
        """The function itself, for now: whoever compiles later gets what would have been made at once."""
        made: list[Callable[..., Any]] = []

        def call(*args: Any, **keywords: Any) -> Any:
            if not made and not isinstance(real := sys.modules[_NAME], NotYetLoaded):
                made.append(real.disable(fn, recursive, **options))
            return (made[0] if made else fn)(*args, **keywords)

        return call

    def __getattr__(self, name: str) -> Any:
        if "is_ready" not in self.__dict__:  # The import itself looks for what a module may have.
            raise AttributeError(name)
        if sys.modules.get(_NAME) is self:
            sys.meta_path.remove(_FINDER)
            del sys.modules[_NAME]
            importlib.import_module(_NAME)
        return getattr(sys.modules[_NAME], name)


class LazyLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return NotYetLoaded(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Its code is run when it is used."""
        module.__dict__["is_ready"] = True


class LazyFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, LazyLoader()) if fullname == _NAME else None


_FINDER = LazyFinder()
sys.meta_path.insert(0, _FINDER)
