"""One layer of the model as a process holds it: what moves when the model is cut elsewhere.

A program that gives whole stages has one of these for every chunk, which never moves.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch

from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.optimizer import LayerOptimizer, Masters, check_optimizer, moving_of
from recycle_runtime.execution.optimizer.plain_state import plain
from recycle_runtime.execution.optimizer.undo import groups_of
from recycle_runtime.program.copies import has_hooks
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.layers import name_prefix
from recycle_runtime.program.loading import Program
from recycle_runtime.program.ties import whole_name


class Layer:
    """Module, optimizer, what moves with it, and buffers; its gradients belong to the chunk that it is in."""

    def __init__(
        self,
        program: Program,
        number: int,
        name: str,
        module: torch.nn.Module,
        *,
        undo_on_host: bool = False,
    ) -> None:
        self._undo_on_host = undo_on_host
        self.number, self.module = number, module
        self.name = name_prefix(name, module)
        """What stands before the names of its parameters in the whole model, or nothing."""
        named = [(each, value) for each, value in module.named_parameters() if value.requires_grad]
        self.parameters = [parameter for _, parameter in named]
        self._own_names = [each for each, _ in named]
        self.parameter_names = [f"{self.name}.{each}" if self.name else each for each in self._own_names]
        """Of the same, in the whole model."""
        masters = _lowered(program, module, self.parameters)
        self.untrained: list[str] = []
        """Names of parameters that require gradients, and that the optimizer leaves out."""
        self.stepped: LayerOptimizer | None = None
        """None where there is nothing to train, or nothing that the program wants to train."""
        if self.parameters:
            self.stepped = self._optimizer(program, masters)
        self.buffers = BufferHistory(module)

    @property
    def title(self) -> str:
        """What it is called where every layer needs a name of its own."""
        return self.name or f"layer {self.number}"

    @property
    def has_hooks(self) -> bool:
        """Whether the user's code is called with gradients, each of one micro-batch."""
        return any(map(has_hooks, self.parameters))

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        return None if self.stepped is None else self.stepped.optimizer

    def state(self) -> dict[str, Any]:
        """Everything that makes this layer what it is, between two steps; nothing is copied."""
        state: dict[str, Any] = {"model": self.module.state_dict(), "optimizer": None}
        if self.stepped is None:
            return state
        state["optimizer"] = _plain_groups(self.stepped.optimizer.state_dict())
        if not self.stepped.moving.is_empty:
            state["moving"] = self.stepped.moving.state_dict()
        if self.stepped.masters is not None:
            state["masters"] = [master.detach() for master in self.stepped.masters.parameters]
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state that was read or received."""
        self.module.load_state_dict(state["model"])
        self.buffers.forget()
        if self.stepped is None:
            return
        self.stepped.optimizer.load_state_dict(state["optimizer"])
        if not self.stepped.moving.is_empty:
            self.stepped.moving.load_state_dict(state.get("moving", {}))
        if self.stepped.masters is not None:
            # A state without them was trained in another precision: its weights are the values.
            model = state["model"]
            self.stepped.masters.load(state.get("masters") or [model[name] for name in self._own_names])

    @property
    def state_bytes(self) -> int:
        """About how many bytes a copy takes: parameters, buffers and what the optimizer keeps."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        if self.stepped is not None:
            kept = (value for state in self.stepped.optimizer.state.values() for value in state.values())
            tensors += [value for value in kept if isinstance(value, torch.Tensor)]
            tensors += [] if self.stepped.masters is None else self.stepped.masters.parameters
            if not self.stepped.moving.is_empty:
                tensors += _tensors(self.stepped.moving.state_dict())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _optimizer(self, program: Program, masters: Masters | None) -> LayerOptimizer | None:
        stepped = self.parameters if masters is None else masters.parameters
        names = [whole_name(program.ties, name) for name in self.parameter_names]
        try:
            optimizer = program.optimizer(stepped, names)
        except ProgramError as error:
            if "empty parameter list" in str(error.__cause__):
                # It chooses some parameters of the model, and none of this layer.
                self.untrained = list(self.parameter_names)
                return None
            raise
        check_optimizer(optimizer, stepped)
        held = {parameter for group in groups_of(optimizer) for parameter in group["params"]}
        named = zip(self.parameter_names, stepped, strict=True)
        self.untrained = [name for name, parameter in named if parameter not in held]
        moving = moving_of(program, self.module, optimizer)
        return LayerOptimizer(optimizer, moving, masters, undo_on_host=self._undo_on_host)


def _lowered(
    program: Program, module: torch.nn.Module, parameters: list[torch.nn.Parameter]
) -> Masters | None:
    """Turn the module into the precision of weights that the program wants, if it wants one."""
    dtype = program.precision.weights
    if dtype is None:
        return None
    values = [value.detach().to(torch.promote_types(value.dtype, torch.float32)) for value in parameters]
    module.to(dtype)
    for parameter in parameters:
        if hasattr(torch.Tensor, "grad_dtype"):
            # Sums over micro-batches and peers lose nothing that a bf16 gradient of one micro-batch has.
            parameter.grad = None
            cast(Any, parameter).grad_dtype = torch.promote_types(dtype, torch.float32)
    return Masters(parameters, values)


def _plain_groups(state: dict[str, Any]) -> dict[str, Any]:
    """Rates that a schedule has computed with numpy are numbers."""
    groups = cast("list[dict[str, Any]]", state["param_groups"])
    return {**state, "param_groups": [plain(group, "param_groups") for group in groups]}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [found for item in cast("Mapping[Any, Any]", value).values() for found in _tensors(item)]
    if isinstance(value, list | tuple):
        return [found for item in cast("list[Any]", value) for found in _tensors(item)]
    return []
