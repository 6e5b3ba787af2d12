"""A stage whose backward comes in two parts: the input's gradient now, the weights' when there is time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from recycle_runtime.execution.split_backward.deferred import Unit
from recycle_runtime.execution.split_backward.general import GeneralUnit
from recycle_runtime.execution.split_backward.owner import Owner
from recycle_runtime.execution.split_backward.selection import choose_units
from recycle_runtime.execution.split_backward.weight_work import WeightWork


def prepare(module: nn.Module) -> "Split":
    """Let the module's layers put their weights off. Called as ever, it still trains as ever.

    Whatever changes the layers themselves (parametrizations, hooks in place of weights, a new forward) must
    come before.
    """
    if any(isinstance(_forward(each), Unit | GeneralUnit) for each in module.modules()):
        raise ValueError("this module has a split backward already; call remove() on that first")
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ValueError("a lazy layer does not know its shape yet; run the module once before it is split")
    return Split(module)


class Split:
    """The backward of one stage."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._owner = Owner()
        self._units = choose_units(module, self._owner)
        self._before = [vars(unit.module).get("forward") for unit in self._units]
        self._puts_off = False
        self.put_off(True)

    def put_off(self, wanted: bool) -> None:
        """False: from the next forward on the module is as it was, which is quicker where no weights wait."""
        if wanted is self._puts_off:
            return
        self._puts_off = wanted
        for unit, before in zip(self._units, self._before, strict=True):
            if wanted:
                unit.module.forward = unit.forward
                continue
            del unit.module.forward
            if before is not None:
                unit.module.forward = before

    def forward(self, *inputs: Any) -> Any:
        """The same as calling the module."""
        return self.module(*inputs)

    def backward_input(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> WeightWork:
        """Gradients of the inputs, into their `.grad`; what is returned computes those of the weights.

        The gradients given are kept until then: nobody may write to them. If this raises, nothing is kept.
        """
        work = WeightWork()
        self._owner.collecting = work
        try:
            self.backward(outputs, gradients)
        except BaseException:
            work.drop()
            raise
        finally:
            self._owner.collecting = None
        return work

    def backward(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """All gradients at once; those of weights are still added in place."""
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
        if pairs:
            torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])

    def remove(self) -> None:
        """Give the modules their own forward back, for good."""
        self.put_off(False)
        self._units, self._before = [], []


def _forward(module: nn.Module) -> object:
    return getattr(vars(module).get("forward"), "__self__", None)
