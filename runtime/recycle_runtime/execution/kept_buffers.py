"""The buffers of a chunk as they were before a step, for a step that is run again.

A forward may change buffers, as BatchNorm does with its running statistics, and torch does not always count
such changes: so all of them are copied when a step begins. A chunk without buffers does nothing here.
"""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from recycle_runtime.experts.mixture import MixtureOfExperts


class KeptBuffers:
    """Copies of a module's buffers: one of each, for as long as the chunk lives."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._owners: list[dict[str, torch.Tensor | None]] = [
            vars(each)["_buffers"] for each in module.modules() if vars(each)["_buffers"]
        ]
        self._places: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor | None]] = []
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def keep(self) -> None:
        """Remember what is there now."""
        if not self._owners:
            return
        self._places = [(owner, name, value) for owner in self._owners for name, value in owner.items()]
        found = {id(value): value for _, _, value in self._places if value is not None}
        before, self._copies = self._copies, {}
        with torch.no_grad():
            for key, value in found.items():
                copy = before[key][1] if key in before and before[key][0] is value else None
                if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
                    copy = torch.empty_like(value)
                self._copies[key] = value, copy
            _copy([copy for _, copy in self._copies.values()], [value for value, _ in self._copies.values()])

    def changed(self) -> set[tuple[int, str]]:
        """Those that are not what they were: by the `id` of the dictionary that they are in, and name."""
        return {
            (id(owner), name)
            for owner, name, value in self._places
            if owner.get(name) is not value
            or (value is not None and not torch.equal(value, self._copies[id(value)][1]))
        }

    def put_back(self) -> None:
        """Make every buffer what it was, whether it was written to or replaced."""
        for owner, name, value in self._places:
            owner[name] = value
        _copy([value for value, _ in self._copies.values()], [copy for _, copy in self._copies.values()])


class BufferHistory:
    """A module's buffers as they were when the last two steps began: no worker goes back further."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._kept = (KeptBuffers(module), KeptBuffers(module))
        self._steps: list[int | None] = [None, None]

    def begin(self, step: int) -> None:
        """A step begins, or begins again."""
        if not self.go_back(step):
            self._steps[step % 2] = step
            self._kept[step % 2].keep()

    def read_by_forwards(self, step: int) -> list[str]:
        """Names of buffers that the forwards of a step have changed, and may read as well: in training, norms
        use the statistics of a micro-batch and not those that they keep. What balances experts changes once
        in a step, in the same way on all peers."""
        if self._steps[step % 2] != step:
            return []
        changed = self._kept[step % 2].changed()
        return [
            f"{where}.{name}" if where else name
            for where, module in self._module.named_modules()
            if not isinstance(module, _NormBase | MixtureOfExperts)
            for name in vars(module)["_buffers"]
            if (id(vars(module)["_buffers"]), name) in changed
        ]

    def go_back(self, step: int) -> bool:
        """To the beginning of a step; False if it has not begun here, so that there is nothing to undo."""
        if self._steps[step % 2] != step:
            return False
        self._kept[step % 2].put_back()
        if self._steps[(step + 1) % 2] == step + 1:
            # It will begin from what the step before it leaves this time.
            self._steps[(step + 1) % 2] = None
        return True

    @contextmanager
    def as_begun(self, step: int) -> Generator[None]:
        """The buffers are what they were when the step began, for as long as this lasts; or are so anyway."""
        if self._steps[step % 2] != step:
            yield
            return
        now = KeptBuffers(self._module)
        now.keep()
        self._kept[step % 2].put_back()
        try:
            yield
        finally:
            now.put_back()

    def forget(self) -> None:
        """The buffers have been replaced by another worker's."""
        self._steps = [None, None]


class LayerBuffers:
    """The buffers of several layers as one; each layer takes its history along when it moves."""

    def __init__(self, histories: Sequence[BufferHistory]) -> None:
        self._histories = tuple(histories)

    def begin(self, step: int) -> None:
        """A step begins, or begins again."""
        for history in self._histories:
            history.begin(step)

    def go_back(self, step: int) -> None:
        """To the beginning of a step, where it has begun."""
        for history in self._histories:
            history.go_back(step)

    @contextmanager
    def as_begun(self, step: int) -> Generator[None]:
        """The buffers are what they were when the step began, for as long as this lasts."""
        with ExitStack() as stack:
            for history in self._histories:
                stack.enter_context(history.as_begun(step))
            yield

    def forget(self) -> None:
        """The buffers have been replaced by another worker's."""
        for history in self._histories:
            history.forget()


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Many small tensors at once."""
    if targets:
        copy: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage]
        with torch.no_grad():
            copy(targets, sources)
