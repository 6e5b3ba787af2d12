"""The order in which borders are found depends on the graph alone, so that processes walk alike."""

import torch
from torch import nn

from recycle_runtime.execution.split_backward.borders import find_borders


def test_borders_come_in_the_order_of_the_outputs() -> None:
    matrices = [nn.Parameter(torch.randn(3, 3)) for _ in range(12)]
    leaf = torch.randn(2, 3, requires_grad=True)
    outputs = [torch.tanh(leaf @ matrix) for matrix in matrices]
    borders = find_borders(outputs, [leaf], matrices)
    assert borders is not None
    found = [next(n for n, each in enumerate(matrices) if each is b.parameters[0]) for b in borders]
    assert found in (list(range(12)), list(range(11, -1, -1)))
