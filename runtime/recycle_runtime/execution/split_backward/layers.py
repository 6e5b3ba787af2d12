"""The layers with a unit of their own: nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d and nn.Conv3d.

    Linear       the weight's gradient is one product, added in place; so is that of `Conv1D` of transformers,
                 which keeps its weight the other way round
    Embedding    the gradient's rows are added where the indices say, without a table of zeros in between
    convolution  padded with zeros, as many on either side

What autocast does to the operands of a layer is done here without its cache: inside a node gradients are off,
and autocast would remember casts made there. Whoever uses the same weight next would get one that leads to no
gradient. A Linear keeps its weights as they were cast until they change, which is once a step: autocast would
cast them for every micro-batch, and again for the gradient of the input. Where weights do not wait, the cast
ones are leaves of autograd's graph whose gradients are those of the weights: nothing else has to be done.

Where they wait, on a GPU the product of two bf16 matrices is added to a float32 gradient by one kernel,
without being rounded to bf16 before.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.deferred import Hooked, Owner, Unit, add, wait
from recycle_runtime.program.copies import has_hooks


def lowered(value: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Operands in the precision that autocast would choose for them."""
    dtype = torch.get_autocast_dtype(value.device.type)
    return cast(value, dtype), cast(weight, dtype), None if bias is None else cast(bias, dtype)


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.to(dtype)


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


class Lowered:
    """A parameter in a lower precision: cast again when the parameter has changed, into the same memory.

    Fused optimizers move no version when they write, so somebody has to say when a step was made.
    """

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None
        """Address of the parameter and its version, when it was converted."""
        self._tensor: Tensor | None = None

    def take(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """The parameter in this precision; float64 stays as it is, as under autocast."""
        now, tensor = _mark(parameter), self._tensor
        if now == self._of and tensor is not None and tensor.dtype == dtype:
            return tensor
        if parameter.dtype in (dtype, torch.float64):
            return parameter
        if tensor is None or tensor.dtype != dtype or tensor.shape != parameter.shape:
            self._tensor = tensor = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        tensor.detach().copy_(parameter.detach())
        self._of = now
        return tensor

    def leaf(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """The same, with the gradient of the parameter: autograd adds to both."""
        tensor: Any = self.take(parameter, dtype)
        if tensor is not parameter and tensor.grad is not parameter.grad:
            tensor.requires_grad_()
            # Gradients of bf16 weights are added to float32, as they come.
            tensor.grad_dtype = None
            tensor.grad = parameter.grad
        return tensor

    @property
    def bytes_held(self) -> int:
        return 0 if self._tensor is None else self._tensor.numel() * self._tensor.element_size()

    def due(self, parameter: Tensor) -> Tensor | None:
        """Tensor to convert the parameter into before its use, counted as converted now; None if unused."""
        if self._tensor is not None:
            self._of = _mark(parameter)
        return self._tensor


def _mark(parameter: Tensor) -> tuple[int, int]:
    return parameter.data_ptr(), parameter._version  # pyright: ignore[reportPrivateUsage]


_addmm_into: Any = getattr(_aten.addmm, "dtype_out", None)


def adds_in_float32(gradient: Tensor, rows: Tensor) -> bool:
    """True if one kernel multiplies in the precision of the rows and adds in that of the gradient."""
    return (
        _addmm_into is not None
        and rows.is_cuda
        and rows.dtype in (torch.bfloat16, torch.float16)
        and gradient.dtype == torch.float32
        and gradient.is_contiguous()
    )


class LinearUnit(Unit):
    """Keeps the input and the gradient; only the gradient if the weight is frozen."""

    def __init__(self, module: nn.Module, owner: Owner) -> None:
        super().__init__(module, owner)
        self._low_weight, self._low_bias = Lowered(), Lowered()

    @property
    def bytes_held(self) -> int:
        return self._low_weight.bytes_held + self._low_bias.bytes_held

    def refresh(self) -> list[tuple[Tensor, Tensor]]:
        found: list[tuple[Tensor, Tensor]] = []
        for low, parameter in ((self._low_weight, self.weight), (self._low_bias, self.parameters["bias"])):
            if parameter is not None and (target := low.due(parameter)) is not None:
                found.append((target, parameter))
        return found

    def at_once(self, input: Tensor) -> Tensor:
        """Autograd adds to the gradients of weights, and casts none."""
        if torch.compiler.is_compiling() or not self.owner.lowers or not torch.is_grad_enabled():
            return self.original(input)
        weight, bias, kind = self.weight, self.parameters["bias"], input.device.type
        if not torch.is_autocast_enabled(kind) or not _has_sum(weight) or not self.has_own(weight, bias):
            return self.original(input)
        dtype = torch.get_autocast_dtype(kind)
        if bias is None:
            return F.linear(input, self._low_weight.leaf(weight, dtype))
        if not _has_sum(bias):
            return self.original(input)
        return self._product(input, self._low_weight.leaf(weight, dtype), self._low_bias.leaf(bias, dtype))

    def waiting(self, input: Tensor) -> Tensor:
        is_trained = self.weight.requires_grad
        value, weight, bias = self._operands(input)
        output = self._product(value, weight, bias)
        wait(output, self, value if is_trained else None)
        return output

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        is_trained = self.weight.requires_grad
        value, weight, bias = self._operands(value)
        ctx.save_for_backward(value if is_trained else None, weight)
        return self._product(value, weight, bias)

    def _operands(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """As autocast would have them; weights want no gradient."""
        weight, bias = self.weight, self.parameters["bias"]
        kind = value.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            value = cast(value, dtype)
            weight = self._low_weight.take(weight, dtype)
            bias = None if bias is None else self._low_bias.take(bias, dtype)
        return value, weight.detach(), None if bias is None else bias.detach()

    def _product(self, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(value, weight, bias)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        weight: Tensor = saved[1]
        return gradient.matmul(weight if weight.dtype == gradient.dtype else weight.to(gradient.dtype))

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        bias = self.parameters["bias"]
        rows = gradient.reshape(-1, gradient.shape[-1])
        if value is not None:
            self._add_product(rows, value.reshape(-1, value.shape[-1]), hooked)
        if bias is not None and bias.requires_grad:
            add(bias, rows.sum(0), hooked)

    def _add_product(self, rows: Tensor, values: Tensor, hooked: Hooked) -> None:
        weight = self.weight
        if weight.grad is None or has_hooks(weight):
            add(weight, rows.t().mm(values), hooked)
        else:
            add_product(weight.grad, rows, values)


class TurnedUnit(LinearUnit):
    """The same of `Conv1D` of transformers, whose weight is `(in, out)`."""

    def _product(self, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = value.view(-1, value.shape[-1])
        assert bias is not None
        return torch.addmm(bias, rows, weight).view(*value.shape[:-1], weight.shape[-1])

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        return super().input_gradient((saved[0], saved[1].t()), gradient)

    def _add_product(self, rows: Tensor, values: Tensor, hooked: Hooked) -> None:
        super()._add_product(values, rows, hooked)


def is_turned(module: nn.Module) -> bool:
    """True of `Conv1D` of transformers."""
    kind, parameters = type(module), vars(module)["_parameters"]
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D") and all(
        isinstance(parameters.get(name), nn.Parameter) for name in ("weight", "bias")
    )


def add_product(grad: Tensor, rows: Tensor, values: Tensor) -> None:
    """Add the gradient of a matrix that has made these rows of these values."""
    if not grad.is_contiguous() and grad.t().is_contiguous():
        grad, rows, values = grad.t(), values, rows
    if grad.dtype == rows.dtype:
        grad.addmm_(rows.t(), values)
    elif adds_in_float32(grad, rows):
        _addmm_into(grad, rows.t(), values, grad.dtype, out=grad)
    else:
        grad.add_(rows.t().mm(values))


_ADDS_TO_ANY_DTYPE = hasattr(torch.Tensor, "grad_dtype")
"""True if a leaf may have a gradient of another precision than its own: since torch 2.10."""


def _has_sum(parameter: Tensor) -> bool:
    """True if it has a gradient to which another leaf may add, and nobody is called with it."""
    return parameter.grad is not None and _ADDS_TO_ANY_DTYPE and not has_hooks(parameter)


def embedding_fits(module: nn.Embedding) -> bool:
    """True if its forward leaves the weight alone and its gradient is an ordinary one."""
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


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def convolution_fits(module: Convolution) -> bool:
    """True if it is padded with zeros, as many on either side."""
    return module.padding_mode == "zeros" and _padding(module) is not None


class ConvolutionUnit(Unit):
    """Keeps the input and the gradient; only the input's shape if the weight is frozen."""

    def __init__(self, module: Convolution, owner: Owner) -> None:
        super().__init__(module, owner)
        padding = _padding(module)
        assert padding is not None
        self.geometry: Geometry = (module.stride, padding, module.dilation, module.groups)
        self.dimensions = len(module.stride) + 2

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        weight, bias = self.weight, self.parameters["bias"]
        used: tuple[Tensor, Tensor, Tensor | None] = (value, weight, bias)
        if torch.is_autocast_enabled(value.device.type):
            used = lowered(value, weight, bias)
        value = used[0]
        kept = value if weight.requires_grad else value.new_empty(()).expand(value.shape)
        ctx.save_for_backward(kept, weight)
        stride, padding, dilation, groups = self.geometry
        edges = [0] * len(stride)
        output = torch.convolution(
            self._batch(value), used[1], used[2], stride, padding, dilation, False, edges, groups
        )
        return output if value.dim() == self.dimensions else output.squeeze(0)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        value: Tensor = saved[0]
        return self._backward(value, saved[1], gradient, (True, False, False))[0].reshape(value.shape)

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        assert value is not None
        weight, bias = self.weight, self.parameters["bias"]
        wanted = (False, weight.requires_grad, bias is not None and bias.requires_grad)
        _, of_weight, of_bias = self._backward(value, weight, gradient, wanted)
        if wanted[1]:
            add(weight, of_weight, hooked)
        if bias is not None and wanted[2]:
            add(bias, of_bias, hooked)

    def _backward(
        self, value: Tensor, weight: Tensor, gradient: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight = weight if weight.dtype == gradient.dtype else weight.to(gradient.dtype)
        return convolution_backward(self._batch(gradient), self._batch(value), weight, self.geometry, wanted)

    def _batch(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.dim() == self.dimensions else tensor.unsqueeze(0)


def _padding(module: Convolution) -> tuple[int, ...] | None:
    """Padding on either side; None if the sides differ."""
    padding: str | tuple[int, ...] = module.padding
    if not isinstance(padding, str):
        return padding
    if padding == "valid":
        return tuple(0 for _ in module.stride)
    whole = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    return None if any(each % 2 for each in whole) else tuple(each // 2 for each in whole)
