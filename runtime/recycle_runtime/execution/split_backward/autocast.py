"""What autocast does to the operands of a layer, done without its cache.

Inside a node gradients are off, and autocast would remember casts made there: whoever uses the same weight
next would get one that leads to no gradient.
"""

import torch
from torch import Tensor


def lowered(value: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands in the precision that autocast would choose for them."""
    dtype = torch.get_autocast_dtype(value.device.type)
    return _cast(value, dtype), _cast(weight, dtype), None if bias is None else _cast(bias, dtype)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)
