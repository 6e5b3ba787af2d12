"""Local parts of a program's DTensors.

    module        weight: DTensor, 8 x 4, Shard(0)      what forwards and backwards compute with
    all else      weight: Parameter, 4 x 4              the same memory, for optimizer, undo, norm, state

So gradients, steps, state, checkpoints and digests are those of plain tensors, as of slices that a program
cuts by hand. A state says beside it which tensors are slices of what, for those who want the whole.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn

from recycle_runtime.program.errors import ProgramError

Slices = dict[str, dict[str, Any]]
"""By name: `dim`, along which the slices of all ranks lie side by side, and `shape` of the whole."""


def is_distributed(value: Any) -> bool:
    """True for a DTensor. Who has not loaded that part of torch has none."""
    if type(value) is torch.Tensor or type(value) is nn.Parameter:
        return False
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(value, loaded.DTensor)


def local(value: Any) -> Any:
    """A DTensor's part that is here, in the same memory; any other value as it is."""
    if not is_distributed(value):
        return value
    whole: Any = value.detach()
    return settled(whole._local_tensor)


def settled(value: torch.Tensor) -> torch.Tensor:
    """A plain tensor, waited for if a collective has it still under way; gradients pass."""
    if type(value) is torch.Tensor or not hasattr(value, "trigger_wait"):
        return value
    waited: Any = _Waited.apply(value)  # pyright: ignore[reportUnknownMemberType]
    return waited if value.requires_grad else waited.detach()


class _Waited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any) -> torch.Tensor:
        return value.trigger_wait().view_as(value.elem)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def whole_number(value: torch.Tensor) -> torch.Tensor:
    """A loss that is a DTensor, as every rank has it."""
    if type(value) is torch.Tensor:
        return value
    return settled(cast(Any, value).full_tensor() if is_distributed(value) else value)


def take_losses_of_slices() -> None:
    """Enable ops of `loss_parallel` until the process ends: a backward comes later than the loss."""
    from torch.distributed.tensor.parallel import loss

    parallel_loss: Any = loss
    parallel_loss._enable_custom_loss_ops()


def plain_outputs(path: Any, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Outputs of a chunk as plain tensors; ProgramError for a DTensor, which cannot be sent."""
    if any(is_distributed(each) for each in outputs):
        raise ProgramError(
            f"{path}: a layer gives a DTensor to the next one, and a plan may put them on two workers, "
            "between which plain tensors are sent",
            "let it give its local part: use_local_output=True of the style, or x.to_local()",
        )
    return tuple(settled(each) if isinstance(each, torch.Tensor) else each for each in outputs)


# Modules.


def local_state(module: nn.Module) -> dict[str, Any]:
    """As `module.state_dict()`."""
    return {name: local(value) for name, value in module.state_dict().items()}


def load_local_state(module: nn.Module, state: Mapping[str, Any]) -> None:
    """As `module.load_state_dict(state)`, with what `local_state` gave; ValueError where it does not fit."""
    own = module.state_dict()
    wholes = {name: value for name, value in own.items() if is_distributed(value)}
    if not wholes:
        module.load_state_dict(state)
        return
    pairs = [(name, local(value), state[name]) for name, value in wholes.items()]
    for name, mine, given in pairs:
        if mine.shape != given.shape:
            raise ValueError(f"{name} has shape {tuple(given.shape)}, and this rank has {tuple(mine.shape)}")
    module.load_state_dict({**state, **wholes})
    with torch.no_grad():
        for _, mine, given in pairs:
            mine.copy_(given)


def put_into_wholes(now: Any, given: Any) -> Any:
    """The state that was given, with local parts put into DTensors where the state now has such."""
    if is_distributed(now):
        with torch.no_grad():
            local(now).copy_(given)
        return now
    if isinstance(now, Mapping) and isinstance(given, Mapping):
        known = cast("Mapping[Any, Any]", now)
        rows = cast("Mapping[Any, Any]", given).items()
        return {name: put_into_wholes(known.get(name), value) for name, value in rows}
    return given


def slices_of(module: nn.Module) -> Slices:
    """Of the tensors in its state that are DTensors and not the same on all ranks."""
    found: Slices = {}
    for name, value in module.state_dict().items():
        if is_distributed(value) and (dim := sharded_along(value)) is not None:
            found[name] = {"dim": dim, "shape": list(value.shape)}
    return found


def sharded_along(whole: Any) -> int | None:
    """The dimension of a DTensor of which ranks have slices; None if all have the same."""
    placement = whole.placements[0]
    return cast(int, placement.dim) % max(1, whole.dim()) if placement.is_shard() else None


def refuse_other_placements(path: Any, named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """ProgramError for a parameter that is laid out as no state is kept here."""
    for name, each in named:
        if not is_distributed(each):
            continue
        whole: Any = each
        kinds = [type(placement).__name__ for placement in whole.placements]
        if kinds not in (["Shard"], ["Replicate"]):
            raise ProgramError(
                f"{path}: {name} is a DTensor with placements {tuple(whole.placements)}: a parameter is in "
                "slices along one dimension (Shard), or the same on all ranks of a worker (Replicate)",
                "distribute it over recycle.mesh(), which has one dimension",
            )


# Parameters.


def stepped_parameters(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Parameters for the optimizer: the local part of a DTensor, others themselves."""
    return [_stepped(each) if is_distributed(each) else each for each in parameters]


def is_slice(parameter: torch.Tensor) -> bool:
    """True for a part of a DTensor that other ranks have other parts of."""
    return hasattr(parameter, "whole_gradient") and cast(Any, parameter).tensor_parallel


def is_slice_by_hand(parameter: torch.Tensor) -> bool:
    """True for one that the program has cut and marked: what it is a slice of only the program knows."""
    return bool(getattr(parameter, "tensor_parallel", False)) and not hasattr(parameter, "whole_gradient")


def _stepped(whole: nn.Parameter) -> nn.Parameter:
    part = nn.Parameter(local(whole))
    if (dtype := getattr(whole, "grad_dtype", whole.dtype)) != whole.dtype:
        cast(Any, part).grad_dtype = dtype
    for name, value in vars(whole).items():
        # What the program has written on a parameter counts for its optimizer too.
        if name not in ("_local_tensor", "_spec"):
            setattr(part, name, value)
    cast(Any, part).tensor_parallel = sharded_along(whole) is not None
    cast(Any, part).whole_gradient = WholeGradient(whole)
    return part


class WholeGradient:
    """The gradient of a DTensor parameter, whose local part is in memory that is given."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter: Any = parameter
        self._view: torch.Tensor | None = None
        self._shown: Any = None
        self._seen = 0

    def show(self, view: torch.Tensor) -> None:
        """Backward adds to this memory from now on; what is in it counts as seen."""
        whole = self._parameter
        if self._view is not view or whole.grad is not self._shown:
            kind: Any = sys.modules["torch.distributed.tensor"].DTensor
            self._view = view
            self._shown = kind.from_local(
                view, whole.device_mesh, whole.placements, run_check=False,
                shape=whole.shape, stride=whole.stride(),
            )  # fmt: skip
            whole.grad = self._shown
        self._seen = self._shown._version

    def take(self) -> torch.Tensor | None:
        """The gradient as it is now: the same memory, and marked as written to if it was; another tensor if
        somebody has replaced it."""
        gradient = self._parameter.grad
        if gradient is None or gradient is not self._shown:
            placements = self._parameter.placements
            return None if gradient is None else local(gradient.redistribute(placements=placements))
        if self._shown._version != self._seen:
            assert self._view is not None
            torch.autograd.graph.increment_version(self._view)
            self._seen = self._shown._version
        return self._view

    def drop(self) -> None:
        """There is none."""
        self._parameter.grad = self._view = self._shown = None
