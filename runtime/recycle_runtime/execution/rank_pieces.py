"""A layer of a process that stands for several tensor-parallel ranks, as it was divided among these.

    module     weight: DTensor, 8 x 4, Shard(0), on 2 ranks: 4 x 4    what forwards and backwards compute with
    pieces     weight: 2 x 4, and weight: 2 x 4                       as two of 4 ranks have it

A worker that has lost ranks goes on with fewer processes. Each of them keeps a state for every rank that it
stands for: parameters, optimizer, undo and gradients of the peers' lengths. So sums of gradients, checkpoints
and states that travel are those of whole workers. A piece is a view of what the module computes with; of a
parameter that is the same on all ranks the first has the module's own, and the others have copies, which are
stepped alike.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from recycle_runtime.execution.local_tensors import WholeGradient, is_distributed, local, sharded_along
from recycle_runtime.program.copies import has_hooks

_ENDS = 8
"""Numbers at the beginning and at the end of a tensor by which those of ranks are compared."""


def why_whole(parameters: Mapping[str, nn.Parameter], tensor: int) -> str:
    """Reason why a layer of a worker with so many ranks cannot be held by fewer; empty if it can."""
    for name, parameter in parameters.items():
        if has_hooks(parameter):
            return f"{name} has hooks on its gradient"
        if not is_distributed(parameter):
            if getattr(parameter, "tensor_parallel", False):
                return f"{name} is cut by hand"
            continue
        dim = sharded_along(parameter)
        if dim is not None and parameter.shape[dim] % tensor:
            return f"dimension {dim} of {name} is {parameter.shape[dim]}, which {tensor} ranks do not divide"
    return ""


def steps_views(
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], parameters: Sequence[torch.Tensor]
) -> bool:
    """True if an optimizer makes the same steps on parts of tensors, which are not contiguous, as on copies
    of them, tried on small ones like these: torch's fused ones do not."""
    with torch.random.fork_rng(devices=[]):
        whole = [torch.randn(3, 4, device=each.device, dtype=each.dtype) for each in parameters]
        gradients = [torch.randn(3, 2, device=each.device, dtype=each.dtype) for each in parameters]
        views = [nn.Parameter(each[:, :2]) for each in whole]
        copies = [nn.Parameter(each[:, :2].clone()) for each in whole]
        for tried in (views, copies):
            made = optimizer(tried)
            for parameter, gradient in zip(tried, gradients, strict=True):
                parameter.grad = gradient.clone()
            try:
                made.step()
            except (RuntimeError, ValueError, TypeError):
                return False
    pairs = zip(whole, copies, strict=True)
    return all(torch.allclose(each[:, :2], copy, equal_nan=True) for each, copy in pairs)


class RankPiece(nn.Module):
    """The part of a module that one of the ranks has: the same names, with parameters of its own.

    Buffers are the module's. `tie` makes parameters views of what the module computes with, once whoever
    steps them has looked at them and changed their precision.
    """

    def __init__(
        self, whole: nn.Module, number: int, count: int, gradients: "dict[int, SharedGradient]"
    ) -> None:
        """Piece `number` of `count`; `gradients` are common to them, by the `id` of a parameter."""
        super().__init__()
        # Not a part of it: what walks over modules has seen that one.
        self._held = (whole,)
        self._number, self._count = number, count
        self._pieces: dict[int, nn.Parameter] = {}
        for parameter in whole.parameters():
            shared = gradients.setdefault(id(parameter), SharedGradient(parameter))
            self._pieces[id(parameter)] = self._piece_of(parameter, shared)

    @property
    def whole(self) -> nn.Module:
        return self._held[0]

    def _piece_of(self, parameter: nn.Parameter, shared: "SharedGradient") -> nn.Parameter:
        piece = nn.Parameter(self._view(parameter).clone(), requires_grad=parameter.requires_grad)
        if (dtype := getattr(parameter, "grad_dtype", parameter.dtype)) != parameter.dtype:
            cast(Any, piece).grad_dtype = dtype
        for name, value in vars(parameter).items():
            if name not in ("_local_tensor", "_spec"):
                setattr(piece, name, value)
        marked: Any = piece
        marked.tensor_parallel = shared.dim is not None
        marked.whole_gradient = GradientPiece(shared, self._number, self._count)
        return piece

    def _view(self, value: torch.Tensor) -> torch.Tensor:
        """The part of a tensor of the module that is this rank's, in the same memory."""
        dim = sharded_along(value) if is_distributed(value) else None
        return piece_of(local(value).detach(), dim, self._number, self._count)

    @torch.no_grad()
    def tie(self) -> None:
        """Be what the module computes with, from now on."""
        for parameter in self.whole.parameters():
            is_copy = self._number > 0 and not (
                is_distributed(parameter) and sharded_along(parameter) is not None
            )
            if not is_copy:
                self._pieces[id(parameter)].data = self._view(parameter)

    # As modules are used by whoever keeps their state.

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.whole.named_parameters(prefix, recurse, remove_duplicate):
            yield name, self._pieces[id(parameter)]

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.Tensor]]:
        return self.whole.named_buffers(prefix, recurse, remove_duplicate)

    def state_dict(self, *args: Any, **options: Any) -> dict[str, Any]:
        parts = dict(self.whole.named_parameters(remove_duplicate=False))
        return {
            name: self._pieces[id(parts[name])].detach() if name in parts else self._plain(value)
            for name, value in self.whole.state_dict().items()
        }

    def _plain(self, value: Any) -> Any:
        return self._view(value) if isinstance(value, torch.Tensor) else value

    @torch.no_grad()
    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        own, parts = self.whole.state_dict(), dict(self.whole.named_parameters(remove_duplicate=False))
        kept = {name: value for name, value in own.items() if name in parts or is_distributed(value)}
        pairs = [
            (
                name,
                self._pieces[id(parts[name])] if name in parts else self._view(own[name]),
                state_dict[name],
            )
            for name in kept
        ]
        for name, mine, given in pairs:
            if mine.shape != given.shape:
                raise ValueError(
                    f"{name} has shape {tuple(given.shape)}, and this rank has {tuple(mine.shape)}"
                )
        loaded = self.whole.load_state_dict({**state_dict, **kept}, strict)
        for _, mine, given in pairs:
            mine.copy_(given)
        return loaded

    def to(self, *args: Any, **options: Any) -> "RankPiece":
        for piece in self._pieces.values():
            piece.data = piece.data.to(*args, **options)
        return self


def are_alike(tensors: Sequence[torch.Tensor], group: Any) -> bool:
    """True if all ranks of a worker have the same tensors, as a few numbers of each of them tell."""
    told = torch.stack([_told(each.detach()) for each in tensors])
    if group.size() == 1:
        return True
    found = [torch.empty_like(told) for _ in range(group.size())]
    group.allgather([found], [told]).wait()
    return all(torch.allclose(each, found[0], rtol=1e-3, atol=1e-9, equal_nan=True) for each in found)


def _told(value: torch.Tensor) -> torch.Tensor:
    flat = value.flatten().to(torch.float64)
    ends = torch.zeros(2 * _ENDS, dtype=torch.float64, device=value.device)
    ends[: min(_ENDS, flat.numel())] = flat[:_ENDS]
    ends[_ENDS : _ENDS + min(_ENDS, flat.numel())] = flat[-_ENDS:]
    return torch.cat([torch.stack([flat.new_tensor(flat.numel()), flat.abs().sum()]), ends])


def piece_of(value: torch.Tensor, dim: int | None, number: int, count: int) -> torch.Tensor:
    """One of so many equal parts of a tensor along a dimension, in the same memory; all of it without one."""
    if dim is None:
        return value
    size = value.shape[dim] // count
    return value.narrow(dim, number * size, size)


class SharedGradient:
    """The gradient of a parameter that a module computes with, in memory of its own; its pieces are copied
    to where they are summed with those of the peers."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        self.dim = sharded_along(parameter) if is_distributed(parameter) else None
        self._whole = WholeGradient(parameter) if is_distributed(parameter) else None
        self._memory: torch.Tensor | None = None
        self._seen = 0

    def clear(self) -> None:
        """Backward adds to memory that is zero from now on."""
        if not self._parameter.requires_grad:
            return
        if self._memory is None:
            mine = local(self._parameter).detach()
            dtype = getattr(self._parameter, "grad_dtype", None) or mine.dtype
            self._memory = torch.zeros_like(mine, dtype=dtype)
        else:
            self._memory.zero_()
        if self._whole is None:
            self._parameter.grad = self._memory
        else:
            self._whole.show(self._memory)
        self._seen = _version(self._memory)

    def take(self) -> torch.Tensor | None:
        """The gradient that backward has added; None if it has added nothing."""
        gradient = self._parameter.grad if self._whole is None else self._whole.take()
        if gradient is None or (gradient is self._memory and _version(gradient) == self._seen):
            return None
        return gradient

    def drop(self) -> None:
        """There is none."""
        if self._whole is not None:
            self._whole.drop()
        self._parameter.grad = self._memory = None


class GradientPiece:
    """As `local_tensors.WholeGradient`, of one of the ranks."""

    def __init__(self, shared: SharedGradient, number: int, count: int) -> None:
        self._shared, self._number, self._count = shared, number, count

    def show(self, view: torch.Tensor) -> None:
        """Take the view into which gradients are copied for their sum."""
        self._shared.clear()

    def take(self) -> torch.Tensor | None:
        gradient = self._shared.take()
        return None if gradient is None else piece_of(gradient, self._shared.dim, self._number, self._count)

    def drop(self) -> None:
        self._shared.drop()


def pieces(module: nn.Module, count: int) -> Sequence[RankPiece]:
    """Of a module that stands for so many ranks."""
    gradients: dict[int, SharedGradient] = {}
    return [RankPiece(module, number, count, gradients) for number in range(count)]


def _version(tensor: torch.Tensor) -> int:
    return tensor._version  # pyright: ignore[reportPrivateUsage]
