"""Backward kernels that torch has no typed name for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Of a convolution: stride, padding and dilation along each axis, and the number of groups."""

_aten: Any = torch.ops.aten
_convolution_backward: Any = _aten.convolution_backward.default
_embedding_dense_backward: Any = _aten.embedding_dense_backward.default


def embedding_backward(gradient: Tensor, indices: Tensor, rows: int, padding: int) -> Tensor:
    """The gradient of the whole table; a padding of -1 is none."""
    return _embedding_dense_backward(gradient, indices, rows, padding, False)


def convolution_backward(
    gradient: Tensor, value: Tensor, weight: Tensor, geometry: Geometry, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, the weight and the bias; those not wanted are undefined."""
    stride, padding, dilation, groups = geometry
    channels, edges = [weight.shape[0]], [0] * len(stride)
    return _convolution_backward(
        gradient, value, weight, channels, stride, padding, dilation, False, edges, groups, wanted
    )
