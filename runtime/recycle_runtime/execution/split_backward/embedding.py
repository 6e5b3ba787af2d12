"""nn.Embedding: the gradient's rows are added where the indices say, without a table of zeros in between."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.accumulate import Hooked, add, has_hooks
from recycle_runtime.execution.split_backward.deferred import Unit
from recycle_runtime.execution.split_backward.kernels import embedding_backward


def fits(module: nn.Embedding) -> bool:
    """Whether its forward leaves the weight alone and its gradient is an ordinary one."""
    return module.max_norm is None and not module.sparse and not module.scale_grad_by_freq


class EmbeddingUnit(Unit):
    """Keeps the indices and the gradient; indices have no gradient themselves."""

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return F.embedding(value, self.weight, self.module.padding_idx)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        raise AssertionError("token ids have no gradient")

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        assert value is not None
        weight, padding = self.weight, self.module.padding_idx
        grad = weight.grad
        # Rows are added one by one: too coarse below float32, and in no fixed order on a GPU.
        in_place = gradient.device.type == "cpu" and gradient.dtype in (torch.float32, torch.float64)
        if grad is None or not in_place or padding is not None or has_hooks(weight):
            padding = -1 if padding is None else padding
            add(weight, embedding_backward(gradient, value, weight.shape[0], padding), hooked)
        else:
            grad.index_add_(0, value.reshape(-1), gradient.reshape(-1, gradient.shape[-1]))
