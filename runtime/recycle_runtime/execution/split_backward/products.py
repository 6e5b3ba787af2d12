"""Products with a module's own matrices, found where its forward makes them: their weights wait.

    forward    F.linear(x, w, b)   torch.addmm(b, x, w)   x @ w   F.grouped_mm(x, w, offs=...)
    backward   the gradient of x   now
    weights    w.grad += ...       in `WeightWork.run`

While the forward of such a module runs, a `_Matrix` stands in the place of each of its matrices: functions of
torch that are called with one, or with a part of one (an expert of several), pass by here, and no others. A
product becomes one whose weights wait. Everything else gets the parameter itself and is left to autograd, so
nothing depends on whether all uses of a matrix were found.

A product whose weights wait knows nothing of second derivatives, of gradients that a forward asks for itself,
or of numbers that it changes behind autograd's back (`.data`). So only modules of `transformers` are looked
at, which do nothing of the kind; those of users are deferred whole.
"""

# Parameters are replaced where torch keeps them, and versions of tensors are private to it.
# pyright: reportPrivateUsage=false

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from recycle_runtime.execution.split_backward.deferred import (
    Hooked,
    Owner,
    Titled,
    add,
    deferred,
    is_transformed,
    refuse_changed,
    wait,
)
from recycle_runtime.execution.split_backward.layers import Lowered, add_product, cast
from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.second_forward import saving_hook

_GROUPED: Sequence[Callable[..., Tensor]] = [
    getattr(place, name)
    for place, name in ((F, "grouped_mm"), (torch, "_grouped_mm"))
    if hasattr(place, name)
]
"""As versions of torch name it, the newest first."""


KNOWN = ("transformers.",)
"""Packages whose modules are looked at."""
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("Permute", "Select", "Slice", "Split", "SplitWithSizes", "T", "Transpose", "Unbind", "View")
)
"""Nodes of autograd that make a part of a tensor: each element of it has a place of its own in memory."""


def is_known(module: nn.Module) -> bool:
    """True if the products of this module may wait one by one."""
    return type(module).__module__.startswith(KNOWN)


class _Part(NamedTuple):
    """A parameter, or a view of it."""

    parameter: nn.Parameter
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def turned(self) -> "_Part":
        """Its last two axes the other way round."""
        *sizes, rows, columns = self.size
        *strides, down, along = self.stride
        return self._replace(size=(*sizes, columns, rows), stride=(*strides, along, down))

    @property
    def is_whole(self) -> bool:
        return self.size == self.parameter.shape and self.stride == self.parameter.stride()

    def of(self, like: Tensor) -> Tensor:
        """The same part of a tensor that lies in memory as the parameter does."""
        return like.as_strided(self.size, self.stride, like.storage_offset() + self.offset)

    def add(self, sum_up: Callable[[Tensor], object], hooked: Hooked) -> None:
        """Let this add to the part of the gradient, or of one of zeros."""
        parameter, grad = self.parameter, self.parameter.grad
        if grad is not None and grad.stride() == parameter.stride() and not has_hooks(parameter):
            sum_up(self.of(grad))
            return
        dtype = getattr(parameter, "grad_dtype", None) or parameter.dtype
        zeros = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        sum_up(self.of(zeros))
        add(parameter, zeros, hooked)


def _part(tensor: Any) -> _Part | None:
    """Part of a parameter that this tensor is, and that autograd adds its gradient to; None if it is none."""
    parameter: Any = tensor
    if type(tensor) is Tensor and tensor._is_view() and _is_taken_plainly(tensor):
        parameter = tensor._base
    if type(parameter) is not nn.Parameter or not (parameter.requires_grad and tensor.requires_grad):
        return None
    if not parameter.is_contiguous() or tensor.dtype != parameter.dtype:
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    offset = int(tensor.storage_offset() - parameter.storage_offset())
    return _Part(parameter, tuple(tensor.shape), tensor.stride(), offset)


def _is_taken_plainly(view: Any) -> bool:
    """True if a gradient of this goes to the same part of its parameter's: nothing else is on the way."""
    node = view.grad_fn
    if node is None or node.name() not in _VIEWS or view._backward_hooks:
        return False
    (below, _), *others = node.next_functions
    return not others and getattr(below, "variable", None) is view._base


class _Product:
    """One product, with a matrix as F.linear takes it: see `deferred.Deferrable`."""

    def __init__(self, made: "Products", weight: _Part, bias: _Part | None) -> None:
        self.owner, self.weight, self.bias = made.owner, weight, bias
        self._lowered, self._unit = made.lowered, made.unit

    @property
    def title(self) -> str:
        """Name of its module for messages."""
        return self._unit.title

    @property
    def trained(self) -> list[nn.Parameter]:
        """Those that it adds to the gradients of."""
        return [part.parameter for part in (self.weight, self.bias) if part is not None]

    def waiting(self, value: Tensor) -> Tensor:
        """The output, of a value that wants a gradient."""
        value, _, output = self._made(value)
        wait(output, self, value)
        return output

    def compute(self, ctx: Any, value: Tensor) -> Tensor:
        value, weight, output = self._made(value)
        ctx.save_for_backward(value, weight)
        return output

    def _made(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The operands as they are used, and the output; the weight wants no gradient."""
        dtype = _autocast_dtype(value)
        weight = self._used(self.weight, dtype)
        bias = None if self.bias is None else self._used(self.bias, dtype)
        value = value if dtype is None else cast(value, dtype)
        return value, weight, F.linear(value, weight, bias)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        weight: Tensor = saved[1]
        return gradient.matmul(weight)

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        assert value is not None
        rows, values = gradient.reshape(-1, gradient.shape[-1]), value.reshape(-1, value.shape[-1])
        self.weight.add(lambda grad: add_product(grad, rows, values), hooked)
        if self.bias is not None:
            self.bias.add(lambda grad: grad.add_(rows.sum(0)), hooked)

    def _used(self, part: _Part, dtype: torch.dtype | None) -> Tensor:
        if dtype is None:
            return part.of(part.parameter.detach())
        lowered = self._lowered.setdefault(part.parameter, Lowered())
        return part.of(lowered.take(part.parameter, dtype).detach())


class _GroupedProduct(_Product):
    """Rows of each group by a matrix of its own, `(groups, in, out)`; autocast leaves it alone."""

    def __init__(self, made: "Products", weight: _Part, given: Tensor, ends: Tensor) -> None:
        """`given` is that part of the weight."""
        super().__init__(made, weight, None)
        self._given = given.detach()
        self._ends, self._version = ends, ends._version

    def _made(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return value, self._given, _grouped(value, self._given, self._ends)

    def input_gradient(self, saved: tuple[Any, ...], gradient: Tensor) -> Tensor:
        weight: Tensor = saved[1]
        return _grouped(gradient.contiguous(), weight.transpose(-2, -1), self._ends)

    def accumulate(self, value: Tensor | None, gradient: Tensor, hooked: Hooked) -> None:
        assert value is not None
        if self._ends._version != self._version:
            refuse_changed(self)
        gradient = gradient.contiguous()

        def sum_up(grad: Tensor) -> None:
            if grad.is_contiguous():
                grad.add_(_grouped(value.t(), gradient, self._ends))
            else:
                grad.transpose(-2, -1).add_(_grouped(gradient.t(), value, self._ends))

        self.weight.add(sum_up, hooked)


def _grouped(one: Tensor, other: Tensor, ends: Tensor) -> Tensor:
    return _GROUPED[0](one, other, offs=ends)


def _autocast_dtype(value: Tensor) -> torch.dtype | None:
    kind = value.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


_Call = Callable[..., "tuple[Tensor, _Product] | None"]
"""The left operand of a product that can wait, and the product; None for any other call."""


def _linear(made: "Products", value: Any, weight: Any, bias: Any = None) -> tuple[Tensor, _Product] | None:
    part, beside = _part(weight), None if bias is None else _part(bias)
    if part is None or len(part.size) != 2:
        return None
    if bias is not None and (beside is None or beside.size != part.size[:1]):
        return None
    return value, _Product(made, part, beside)


def _added(
    made: "Products", bias: Any, value: Any, weight: Any, *, beta: Any = 1, alpha: Any = 1
) -> tuple[Tensor, _Product] | None:
    part, beside = _part(weight), _part(bias)
    if part is None or beside is None or beta != 1 or alpha != 1 or beside.size != part.size[1:]:
        return None
    return value, _Product(made, part.turned, beside)


def _multiplied(made: "Products", value: Any, weight: Any) -> tuple[Tensor, _Product] | None:
    part = _part(weight)
    if part is None or len(part.size) != 2:
        return None
    return value, _Product(made, part.turned, None)


def _in_groups(
    made: "Products", value: Any, weight: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> tuple[Tensor, _Product] | None:
    part = _part(weight)
    if part is None or len(part.size) != 3 or value.dim() != 2 or offs is None:
        return None
    if bias is not None or out_dtype is not None or value.dtype != weight.dtype:
        return None
    return value, _GroupedProduct(made, part, weight, offs)


_CALLS: dict[Any, _Call] = {
    F.linear: _linear,
    torch.addmm: _added,
    torch.matmul: _multiplied,
    torch.Tensor.matmul: _multiplied,
    torch.Tensor.__matmul__: _multiplied,
    **dict.fromkeys(_GROUPED, _in_groups),
}


class _Matrix(Tensor):
    """A parameter, or a part of one, as the forward of its module sees it."""

    made: "Products"
    whole: Tensor
    """The matrix that it stands for."""

    @classmethod
    def of(cls, made: "Products", real: Tensor) -> "_Matrix":
        # Functions that do not pass by here find a tensor that leads to the parameter.
        matrix = real.as_subclass(cls)
        matrix.made, matrix.whole = made, real
        return matrix

    def __getattr__(self, name: str) -> Any:
        """Marks that somebody has set on the parameter."""
        return getattr(self.whole, name)

    @property
    def _is_param(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Asked by `isinstance(..., nn.Parameter)`."""
        return isinstance(self.whole, nn.Parameter)

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.whole.device

    @property
    def dtype(self) -> torch.dtype:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.whole.dtype

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not torch.is_grad_enabled():
            # In a function of autograd, which has to see its own input.
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        found: list[_Matrix] = []
        args, options = _without(args, found), _without(kwargs, found) if kwargs else {}
        call = _CALLS.get(func)
        if call is not None and found and (made := found[0].made.product(call, args, options)) is not None:
            return made
        result = func(*args, **options)
        return _parts(found[0].made, result) if found else result


def _without(value: Any, found: list[_Matrix]) -> Any:
    """The same with parameters in the place of their matrices."""
    kind: Any = type(value)
    if kind is _Matrix:
        found.append(value)
        return value.whole
    if kind is tuple or kind is list:
        return kind([_without(each, found) for each in value])
    if kind is dict:
        return {name: _without(each, found) for name, each in value.items()}
    return value


def _parts(made: "Products", result: Any) -> Any:
    """The same; parts of matrices are matrices."""
    kind: Any = type(result)
    if kind is Tensor:
        is_part = result._is_view() and result.requires_grad and made.has(result._base)
        return _Matrix.of(made, result) if is_part else result
    if kind is tuple or kind is list:
        return kind([_parts(made, each) for each in result])
    return result


class Products:
    """Those of one module, while its forward runs."""

    def __init__(self, owner: Owner, unit: Titled, module: nn.Module) -> None:
        self.owner, self.unit = owner, unit
        own = [each._parameters for each in module.modules()]
        self._places = [(parameters, name) for parameters in own for name in parameters]
        self._own: set[int] = set()
        self.lowered: dict[nn.Parameter, Lowered] = {}
        """In the precision of autocast, from one step to the next."""

    def run(self, forward: Callable[[], Any]) -> Any:
        """The forward of this module: products with matrices of others are left to autograd."""
        before = [(owner, name, owner[name]) for owner, name in self._places]
        self._own = {id(parameter) for _, _, parameter in before if parameter is not None}
        try:
            for owner, name, parameter in before:
                if type(parameter) is nn.Parameter and parameter.requires_grad and parameter.dim() > 1:
                    matrix: Any = _Matrix.of(self, parameter)
                    owner[name] = matrix
            return forward()
        finally:
            for owner, name, parameter in before:
                owner[name] = parameter

    def has(self, tensor: Tensor | None) -> bool:
        """True if this is a parameter of the module."""
        return id(tensor) in self._own

    @property
    def bytes_held(self) -> int:
        return sum(each.bytes_held for each in self.lowered.values())

    def refresh(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Casts that are due before a step, from a parameter into the memory of its lower precision."""
        for parameter, lowered in self.lowered.items():
            if (target := lowered.due(parameter)) is not None:
                yield target, parameter

    def product(self, call: "_Call", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The result of this call, if it is a product whose weights can wait."""
        found = self._found(call, args, kwargs)
        if found is None:
            return None
        value, product = found
        return product.waiting(value) if value.requires_grad else deferred(value, self.owner.anchor, product)

    def _found(
        self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, _Product] | None:
        if not torch.is_grad_enabled() or is_transformed() or not self.owner.waits(saving_hook()):
            return None
        try:
            found = call(self, *args, **kwargs)
        except TypeError:
            # Named otherwise, or with an `out`.
            return None
        if found is None:
            return None
        value, product = found
        if any(id(each) not in self._own for each in product.trained):
            return None
        weight = product.weight.parameter
        is_plain = type(value) in (Tensor, nn.Parameter) and not value.is_nested and value.dim() > 1
        is_plain = is_plain and value.device == weight.device
        if not is_plain or (value.dtype != weight.dtype and _autocast_dtype(value) is None):
            return None
        return found
