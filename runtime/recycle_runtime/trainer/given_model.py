"""The model that a script has given to its trainer, which is not the one that is trained.

Every worker trains copies of its own layers, made of what is kept here. What the script still holds has the
values that training began with, so nothing is to be read from it, and changes of it would have no effect.
Both are mistakes that nobody sees, so they are refused: parameters and buffers by themselves wherever they
are used, what else a module is made of when the next step is asked for. Names, shapes and types may be looked
at.
"""

# Tensors and modules keep much of what is compared under names that torch calls private.
# pyright: reportPrivateUsage=false

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, cast

import torch
from torch import nn

from recycle_runtime.program.copies import copied, copied_with
from recycle_runtime.program.errors import ProgramError

_LOOKS = {
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "itemsize", "names", "requires_grad"),
    *("is_leaf", "grad_fn", "output_nr", "_version", "_backward_hooks", "_post_accumulate_grad_hooks"),
    *("is_cpu", "is_cuda", "is_mps", "is_xla", "is_meta", "is_sparse", "is_nested", "is_quantized"),
}
"""Attributes of a tensor that say nothing of its values."""
_ASKS = {
    *("numel", "nelement", "size", "dim", "ndimension", "stride", "element_size", "is_floating_point"),
    *(
        "is_complex",
        "is_signed",
        "is_contiguous",
        "is_shared",
        "is_pinned",
        "is_inference",
        "__len__",
        "__hash__",
    ),
}
"""Methods of the same kind."""
_HINT = (
    "trainer.evaluate(data) evaluates what is trained, trainer.state_dict() and trainer.save(folder) give "
    "it, for a module of your own; change or copy the model before recycle.Trainer is made"
)
_GRADIENTS = "gradients are clipped by clip_norm= and clip_value=, and report.gradient_norm is their norm"
_FREEZING = (
    "freeze parameters before recycle.Trainer is made; a schedule= with a learning rate of 0 freezes them "
    "for some steps"
)
_HINTS = {"grad": _GRADIENTS, "_grad": _GRADIENTS, "requires_grad": _FREEZING, "requires_grad_": _FREEZING}
"""By attribute or method; `_HINT` for all others."""


def _answer(cls: Any, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
    """Of an op on a tensor that was given away: what has nothing to do with its values."""
    name = getattr(func, "__name__", "")
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    if name in _ASKS or (name == "__get__" and attribute in _LOOKS):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
    _refuse(_called(args, kwargs), _HINTS.get(attribute or name, _HINT))


def _refuse(name: str, hint: str) -> NoReturn:
    raise ProgramError(
        f"{name} belongs to the model that recycle.Trainer was given, and not to the copies that workers "
        "train",
        hint,
    )


def _refuse_state(module: nn.Module, state: Mapping[str, Any], prefix: str, *options: Any) -> None:
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if own:
        _refuse(f"{prefix}{own[0][0]}", _HINT)


def _called(args: Any, kwargs: dict[str, Any] | None) -> str:
    """The name of the first such tensor among the arguments of an op."""
    values: list[Any] = [*args, *(kwargs or {}).values()]
    while values:
        value = values.pop(0)
        if isinstance(value, GivenParameter | GivenBuffer):
            return value.given_name
        if isinstance(value, list | tuple):
            values[:0] = cast("list[Any]", value)
    return "a tensor"


class _Given:
    """Base of both kinds of tensors."""

    given_name: str = "a tensor"

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        given = cast(Any, self)
        return f"<{self.given_name}: {tuple(given.shape)} of {given.dtype}, given to recycle.Trainer>"

    def __format__(self, format_spec: str) -> str:
        return repr(self)


class GivenParameter(_Given, nn.Parameter):
    """In place of `nn.Parameter`: the same object, of which nothing can be computed any more."""

    __torch_function__: ClassVar[Any] = classmethod(_answer)


class GivenBuffer(_Given, torch.Tensor):
    """In place of a buffer."""

    __torch_function__: ClassVar[Any] = classmethod(_answer)


_GIVEN: dict[type[Any], type[Any]] = {nn.Parameter: GivenParameter, torch.Tensor: GivenBuffer}


class GivenModel:
    """A module, or a list of (name, module), as it was when the trainer was made."""

    def __init__(self, model: Any) -> None:
        """`model` keeps its structure, and cannot be used any more; its memory is not copied."""
        try:
            self._kept = copied_with({id(each): _alias(each) for each in _tensors(model).values()}, model)
        except Exception as error:
            words = " ".join(str(error).split())
            raise ProgramError(
                f"the model cannot be copied ({type(error).__name__}: {words})",
                "give recycle.Trainer a function that builds it",
            ) from error
        for _, module in _named_modules(model):
            # torch would say it of every tensor, and call it an error of its own.
            module.register_load_state_dict_pre_hook(_refuse_state)
        self._marks = {name: _Mark(module) for name, module in _named_modules(model)}
        for name, tensor in _tensors(model).items():
            if type(tensor) in _GIVEN:
                tensor.__class__ = _GIVEN[type(tensor)]
                cast(Any, tensor).given_name = name

    @property
    def kept(self) -> Any:
        """The model as it was given; not to be changed."""
        return self._kept

    def copy(self) -> Any:
        """One with memory of its own."""
        return copied(self._kept)

    def check(self) -> None:
        """ProgramError if the script has changed what it had given."""
        for name, mark in self._marks.items():
            if (what := mark.changed()) is not None:
                raise ProgramError(
                    f"{name or 'the model'} was changed after recycle.Trainer was given it ({what}), which "
                    "has no effect: workers train copies of its layers",
                    "change the model before recycle.Trainer is made",
                )


class _Mark:
    """Parts of a module: its own attributes, parts and hooks, and versions of its tensors."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = dict(vars(module))
        self._inside = {
            name: dict(cast("Mapping[Any, Any]", value))
            for name, value in self._attributes.items()
            if name.startswith("_") and isinstance(value, dict)
        }
        everything = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        # Those without a counter, or without memory, are refused later if at all.
        tensors = [each for each in everything if not _is_lazy(each) and not each.is_inference()]
        # Plain tensors with the same counter of writes: those of the script answer slowly.
        self._written = [(tensor.detach(), tensor._version) for tensor in tensors]
        found = [cast("dict[int, Any] | None", tensor._backward_hooks) for tensor in tensors]
        self._hooks = [(hooks, dict(hooks)) for hooks in found if hooks is not None]
        others = [tensor for tensor in tensors if type(tensor) not in _GIVEN]
        self._frozen = [(tensor, tensor.requires_grad) for tensor in others]

    def changed(self) -> str | None:
        """Name of the part of the model that has changed; attributes that came later are the script's own."""
        now = vars(self._module)
        for name, before in self._attributes.items():
            if now.get(name, _NOTHING) is not before and not _is_same(before, now.get(name, _NOTHING)):
                return "train() or eval()" if name == "training" else name
        for name, before in self._inside.items():
            if not _is_same_dict(before, now[name]):
                return _PARTS.get(name, name.strip("_").replace("_", " "))
        if any(not _is_same_dict(before, hooks) for hooks, before in self._hooks):
            return "a hook on a gradient"
        is_written = any(tensor._version != version for tensor, version in self._written)
        if is_written or any(tensor.requires_grad != before for tensor, before in self._frozen):
            return "a parameter or buffer"
        return None


_NOTHING: Any = object()
_PARTS = {"_parameters": "a parameter", "_buffers": "a buffer", "_modules": "a module in it"}


def _is_same(before: Any, now: Any) -> bool:
    plain = (bool, int, float, str, tuple, type(None))
    return isinstance(before, plain) and type(before) is type(now) and before == now


def _is_same_dict(before: dict[Any, Any], now: Mapping[Any, Any]) -> bool:
    if not before or len(before) != len(now):
        return len(before) == len(now)
    return all(now.get(name, _NOTHING) is value for name, value in before.items())


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another object with the same memory; frozen or not, as that one is."""
    if type(tensor) is nn.Parameter:
        return nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return tensor.detach() if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor


def _tensors(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, each once."""
    found: dict[str, torch.Tensor] = {}
    for name, module in _named_modules(model):
        own: Iterable[tuple[str, torch.Tensor]] = (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        )
        found |= {f"{name}.{inner}" if name else inner: tensor for inner, tensor in own}
    return {name: tensor for name, tensor in found.items() if not _is_lazy(tensor)}


def _is_lazy(tensor: torch.Tensor) -> bool:
    return nn.parameter.is_lazy(tensor)


def _named_modules(model: Any) -> list[tuple[str, nn.Module]]:
    """All of them, under the names of the whole model."""
    if isinstance(model, nn.Module):
        return list(model.named_modules())
    return [
        (f"{name}.{inner}" if inner else name, module)
        for name, layer in _layers(model)
        for inner, module in layer.named_modules()
    ]


def _layers(model: Any) -> list[tuple[str, nn.Module]]:
    """As far as it is a list of such pairs; what else is in it is refused later."""
    rows = [list(cast("Sequence[Any]", row)) for row in model if isinstance(row, list | tuple)]
    return [(str(row[0]), row[1]) for row in rows if len(row) == 2 and isinstance(row[1], nn.Module)]
