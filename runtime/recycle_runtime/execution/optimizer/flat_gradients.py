"""The gradients of a stage in a few long tensors, one for each dtype and device.

    sharded over tensor-parallel ranks | the same on all of them | one flag per parameter

Reducing, clearing, scaling and measuring are then one operation each. A flag says whether the parameter has a
gradient in this step at all. Flags travel with the gradients, so peers agree on what the optimizer may touch.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch

from recycle_runtime.execution.optimizer.gradient_part import GradientPart


class FlatGradients:
    """Makes the `.grad` of every trainable parameter a view into a flat buffer, and keeps it so.

    A parameter with the attribute `tensor_parallel = True` is a shard; any other is the same on all ranks.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        everything = list(dict.fromkeys(parameters))
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        kinds: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for parameter in everything:
            if parameter.requires_grad:
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        self._parts = [GradientPart(members) for members in kinds.values()]
        self.device = everything[0].device if everything else torch.device("cpu")
        self._kept: list[tuple[torch.Tensor, list[bool]]] = []

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What to sum over peers."""
        return [part.flat for part in self._parts]

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [parameter for part in self._parts for parameter in part.parameters]

    @property
    def bytes_held(self) -> int:
        tensors = self.buffers + [copy for copy, _ in self._kept]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def zero(self) -> None:
        """No parameter has a gradient."""
        for part in self._parts:
            part.zero()

    def gather(self) -> None:
        """Before the sum over peers: take in gradients that were put elsewhere, and raise the flags."""
        if any(parameter.requires_grad for parameter in self._frozen):
            raise ValueError(
                "a parameter that was frozen when training began requires a gradient now; "
                "let it require one from the start, and keep it out of the loss until then"
            )
        for part in self._parts:
            part.repair()
            part.raise_flags()

    def look(self) -> None:
        """After the sum over peers: see which parameters have a gradient on any of them."""
        for part in self._parts:
            part.read_flags()

    def sum_of_squares(self, tensor_parallel_rank: int = 0) -> torch.Tensor:
        """Over what this rank answers for, in float64, on the device; not finite if a gradient is not.

        In float32 and below, gradients beyond about 1e18 count as not finite.
        """
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part in self._parts:
            total += part.sum_of_squares(tensor_parallel_rank).to(self.device)
        return total

    def scale(self, factor: float) -> None:
        for part in self._parts:
            part.flat[: part.values].mul_(factor)

    def keep(self) -> None:
        """Copy the gradients of this step aside; from then on that costs as much memory as they do."""
        if not self._kept:
            self._kept = [(torch.empty_like(part.flat), []) for part in self._parts]
        for part, (copy, present) in zip(self._parts, self._kept, strict=True):
            copy.copy_(part.flat)
            present[:] = part.present

    def bring_back(self) -> None:
        """Put what `keep` has copied in the place of what has been accumulated since."""
        for part, (copy, present) in zip(self._parts, self._kept, strict=True):
            part.flat.copy_(copy)
            part.present = list(present)

    @contextmanager
    def shown(self, nothing: bool = False) -> Generator[None]:
        """Inside, a parameter without gradient has None, as torch's optimizers expect."""
        for part in self._parts:
            part.hide(nothing)
        try:
            yield
        finally:
            for part in self._parts:
                part.attach()
