"""Check that a loss is a function of output and target alone, which its first calls show.

A parameter that only the loss has is in no layer, and nothing would train it. What a loss counts from call to
call is counted by each worker for itself, over its own micro-batches, and is neither undone nor handed over.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from recycle_runtime.program.errors import ProgramError

_CALLS = 2
"""In which what is remembered is looked for."""
_PLAIN = (bool, int, float, str)
_log = logging.getLogger(__name__)


class LossCheck:
    """Of one chunk, which is the last of its model."""

    def __init__(self, path: Path, loss: Callable[..., Any], module: nn.Module) -> None:
        self._path, self._loss, self._module = path, loss, module
        self._calls = 0
        self._is_told = False
        self.is_over = False
        """True if everything has been looked at."""

    def call(self, compute: Callable[[], Tensor]) -> Tensor:
        """The loss of a micro-batch; ProgramError if it has parameters of its own."""
        before = dict(_remembered(self._loss))
        value = compute()
        changed = [name for name, seen in _remembered(self._loss) if before.get(name, seen) != seen]
        if changed and not self._is_told:
            self._is_told = True
            _log.warning(
                "%s: the loss changes %s when it is called: every worker calls it for its own micro-batches, "
                "so each has a value of its own, which a failure neither undoes nor hands over",
                self._path,
                changed[0],
            )
        if value.requires_grad:
            self._calls += 1
            self.is_over = self._calls >= _CALLS
            self._check_parameters(value)
        return value

    def _check_parameters(self, value: Tensor) -> None:
        own = set(self._module.parameters())
        foreign = next((leaf for leaf in _leaves(value) if leaf not in own), None)
        if foreign is not None:
            raise ProgramError(
                f"{self._path}: the loss uses a parameter of shape {tuple(foreign.shape)} that requires a "
                "gradient and is in no layer of the model, so nothing would train it",
                "make it a part of the last layer, or freeze it with requires_grad_(False)",
            )


def _leaves(value: Tensor) -> Iterator[nn.Parameter]:
    """Parameters that a backward from here would reach."""
    seen: set[Any] = set()
    waiting: list[Any] = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            yield leaf
        waiting += [following for following, _ in node.next_functions]


def _remembered(loss: Any) -> Iterator[tuple[str, Any]]:
    """State that a function keeps: attributes of the object that it belongs to, closure variables, globals.

    Numbers and texts, and the version counters of tensors, each with its name.
    """
    if isinstance(loss, partial):
        loss = cast("partial[Any]", loss).func
    owner = getattr(loss, "__self__", None if hasattr(loss, "__code__") else loss)
    modules = owner.modules() if isinstance(owner, nn.Module) else [owner]
    for module in modules:
        kept = dict(getattr(module, "__dict__", {}))
        kept |= kept.get("_buffers", {}) if isinstance(module, nn.Module) else {}
        yield from _looks(type(module).__name__, kept)
    function = getattr(loss, "__func__", loss)
    if (code := getattr(function, "__code__", None)) is None:
        return
    closed = zip(code.co_freevars, function.__closure__ or (), strict=True)
    yield from _looks("", {name: getattr(cell, "cell_contents", None) for name, cell in closed})
    known = function.__globals__
    yield from _looks("", {name: known[name] for name in code.co_names if name in known})


def _looks(of: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        called = f"{of}.{name}" if of else name
        if isinstance(value, _PLAIN):
            yield called, value
        elif isinstance(value, Tensor) and not value.is_inference():
            yield called, (id(value), value._version)  # pyright: ignore[reportPrivateUsage]
        elif isinstance(value, list):
            # What is appended to, or a number that a function writes to.
            items = cast("list[Any]", value)
            yield called, (len(items), *(item for item in items[:8] if isinstance(item, _PLAIN)))
