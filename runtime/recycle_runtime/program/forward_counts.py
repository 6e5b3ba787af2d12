"""Counts that a model keeps from one forward to the next, where no worker sees all of them.

Buffers of layers are known, and are their worker's own. A number that is an attribute, or a buffer around
the layers, is neither handed on nor saved: it is found by comparing before and after the second forward.
"""

import logging
from collections.abc import Collection, Generator
from contextlib import contextmanager

import torch
from torch import nn

_LOGGER = logging.getLogger(__name__)


class CountsSeen:
    """Of one model; tells what changes with every forward, once."""

    def __init__(self) -> None:
        self._forwards = 0

    @contextmanager
    def during(self, model: nn.Module, layers: Collection[str]) -> Generator[None]:
        """While the model computes; these are the names of the modules of its layers."""
        self._forwards += 1
        # What is computed once and kept changes in the first.
        if self._forwards != 2:
            yield
            return
        before = _counts(model, layers)
        yield
        after = _counts(model, layers)
        changed = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
        if changed:
            _LOGGER.warning(
                "the forward of %s changes %s with every micro-batch: each worker counts its own, and what "
                "is computed by that differs from one process; let the micro-batch say it",
                type(model).__name__,
                ", ".join(changed),
            )


def _counts(model: nn.Module, layers: Collection[str]) -> dict[str, object]:
    """Numbers that are attributes of any module, and versions of buffers around the layers."""
    found: dict[str, object] = {}
    inside = tuple(f"{name}." for name in layers)
    for name, module in model.named_modules():
        dot = f"{name}." if name else ""
        numbers = ((key, value) for key, value in vars(module).items() if isinstance(value, int | float))
        found |= {f"{dot}{key}": value for key, value in numbers if key != "training"}
        if not dot.startswith(inside) or not inside:
            named = module.named_buffers(recurse=False)
            found |= {f"{dot}{key}": _version(buffer) for key, buffer in named}
    return found


def _version(buffer: torch.Tensor) -> tuple[int, int]:
    return id(buffer), buffer._version
