"""First numbers of a step that are not finite: looked at only if the step cannot stand.

For every micro-batch the sum of what a chunk gives on is kept, on its device. It is not finite if one of the
numbers is not, and nobody waits for it unless the norm of the gradients is not finite either. What the host
has anyway is not even added up until then.
"""

from collections.abc import Iterable

import torch

from recycle_runtime.protocol.messages.steps import NotFinite

_KEPT = 2
"""Steps: what became of one is known in the next."""


class Finiteness:
    """Sums of what this worker has computed, by step; or what to sum, where that costs no memory."""

    def __init__(self) -> None:
        self._steps: dict[int, list[tuple[str, int, torch.Tensor]]] = {}
        self._now: list[tuple[str, int, torch.Tensor]] = []
        """Of the step under way."""

    def begin(self, step: int) -> None:
        """A run of this step begins; sums of an earlier run of it are dropped."""
        self._steps.pop(step, None)
        self._steps[step] = self._now = []
        for old in sorted(self._steps)[:-_KEPT]:
            del self._steps[old]

    def note(
        self, what: str, microbatch: int, tensors: Iterable[torch.Tensor], *, stays: bool = False
    ) -> None:
        """Record values of a micro-batch. `stays`: its data, which the host keeps for as many steps."""
        for tensor in tensors:
            if tensor.is_floating_point():
                value = tensor if stays and tensor.is_cpu else _sum(tensor.detach())
                self._now.append((what, microbatch, value))

    def found(self, step: int) -> tuple[NotFinite, ...]:
        """Non-finite values (inf or NaN) of a step, in order of computation; waits for the device."""
        sums = self._steps.get(step, ())
        return tuple(
            NotFinite(what, number) for what, number, total in sums if not bool(_sum(total).isfinite())
        )


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum(dtype=torch.float32)
