"""Adding to the gradient of a parameter, as autograd does it, hooks included."""

# Whether a parameter has hooks can only be read from attributes that torch calls private.
# pyright: reportPrivateUsage=false

import torch
from torch import Tensor, nn

Hooked = dict[nn.Parameter, Tensor]
"""Gradients of one micro-batch for parameters with hooks: those see the sum, once."""


def has_hooks(parameter: nn.Parameter) -> bool:
    """Whether somebody waits for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def add(parameter: nn.Parameter, gradient: Tensor, hooked: Hooked) -> None:
    """Add a gradient that nobody else holds."""
    if has_hooks(parameter):
        earlier = hooked.get(parameter)
        hooked[parameter] = gradient if earlier is None else earlier + gradient
    elif parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad.add_(gradient)


def run_hooks(hooked: Hooked) -> None:
    """Let autograd accumulate what has waited for this, and call the hooks."""
    if hooked:
        torch.autograd.backward(
            list(hooked), [each.to(parameter.dtype) for parameter, each in hooked.items()]
        )
