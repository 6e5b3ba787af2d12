"""Copies of modules and parameters that keep what torch's own copies lose.

`copy.deepcopy` of a module keeps hooks of modules and binds methods to the copy; of a parameter it keeps
values alone. Hooks on its gradient, and marks of the user such as `tensor_parallel`, are carried over here.
"""

# Hooks can only be read from attributes that torch calls private.
# pyright: reportPrivateUsage=false

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from recycle_runtime.program.compiled import compile_alike
from recycle_runtime.program.errors import ProgramError

Kind = TypeVar("Kind")


def has_hooks(parameter: Tensor) -> bool:
    """True if somebody wants to see or to change its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def carry_over(source: nn.Parameter, target: nn.Parameter) -> None:
    """Hooks and marks of a parameter, to one that stands for it."""
    vars(target).update(vars(source))
    if not source.requires_grad:
        return
    # No private attribute is written to: registering also tells autograd.
    for hook in _hooks(source._backward_hooks):
        target.register_hook(hook)
    for hook in _hooks(source._post_accumulate_grad_hooks):
        target.register_post_accumulate_grad_hook(hook)


def copied(modules: Kind) -> Kind:
    """A module, or a list of (name, module), with memory of its own."""
    return copied_with({}, modules)


def copied_with(memo: dict[int, Any], modules: Kind) -> Kind:
    """The same, where `memo` already says what stands for some parameters, by their `id`."""
    made = copy.deepcopy(modules, memo)
    compile_alike(zip(modules_in(modules), modules_in(made), strict=True))
    for parameter in parameters_in(modules):
        if (twin := memo.get(id(parameter))) is not None:
            carry_over(parameter, twin)
    return made


def parameters_in(modules: Any) -> list[nn.Parameter]:
    """Each once."""
    return list(dict.fromkeys(each for module in modules_in(modules) for each in module.parameters()))


def modules_in(modules: Any) -> list[nn.Module]:
    """Those that a module or a list of (name, module) is made of, each once."""
    if isinstance(modules, nn.Module):
        return list(modules.modules())
    if isinstance(modules, Sequence) and not isinstance(modules, str | bytes):
        parts = cast("Sequence[Any]", modules)
        return list(dict.fromkeys(found for part in parts for found in modules_in(part)))
    return []


def refuse_hooks(
    path: Any, named: Iterable[tuple[str, nn.Parameter]], ties: Sequence[Sequence[str]] = ()
) -> None:
    """Of those kinds that cannot give what they give in a plain loop; ProgramError names the parameter."""
    for name, parameter in named:
        if parameter.requires_grad and parameter._post_accumulate_grad_hooks:
            raise ProgramError(
                f"{path}: {name} has a hook that was set by register_post_accumulate_grad_hook, and no "
                "worker has the accumulated gradient: each accumulates those of its own micro-batches",
                "register_hook is called with the gradient of every micro-batch",
            )
        tied = next((names for names in ties if name in names), None)
        if tied is not None and has_hooks(parameter):
            raise ProgramError(
                f"{path}: {name} has a hook on its gradient and is one with "
                f"{' and '.join(other for other in tied if other != name)}: no worker has the whole gradient "
                "of a micro-batch, which the hook should be called with",
                "use moves_with_steps, or a hook of the optimizer, which see the sum of the step",
            )


_WRAPPERS = {
    "FSDPModule": "fully_shard",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
}
"""Classes of torch.distributed, and what makes modules of them."""


def refuse_wrappers(path: Any, modules: Any) -> None:
    """ProgramError if a module, or one of a list, sums gradients or shares out parameters by itself."""
    kinds = (kind.__name__ for module in modules_in(modules) for kind in type(module).__mro__)
    found = next((_WRAPPERS[name] for name in kinds if name in _WRAPPERS), None)
    if found is not None:
        raise ProgramError(
            f"{path}: the model uses {found}: workers of a stage sum their gradients already, and a failed "
            "one would take its part of the parameters along",
            "leave it out; `optimizer { state = sharded }` in the job divides optimizer state among the "
            "workers of a stage, and parallelize_module over recycle.mesh() divides parameters",
        )


def _hooks(hooks: Any) -> list[Any]:
    return list(cast("Mapping[int, Any]", hooks or {}).values())
