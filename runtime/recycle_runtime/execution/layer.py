"""One layer of the model as a process holds it: what moves when the model is cut elsewhere.

A program that gives whole stages has one of these for every chunk, which never moves.
"""

from typing import Any

import torch

from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.optimizer import Undo, check_optimizer
from recycle_runtime.program.loading import Program


class Layer:
    """Module, optimizer, undo and buffers; its gradients belong to the chunk that it is in."""

    def __init__(self, program: Program, number: int, name: str, module: torch.nn.Module) -> None:
        self.number, self.name, self.module = number, name, module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer = program.optimizer(self.parameters) if self.parameters else None
        """None where there is nothing to train."""
        self.undo = None if self.optimizer is None else Undo(self.optimizer)
        if self.optimizer is not None:
            check_optimizer(self.optimizer, self.parameters)
        self.buffers = BufferHistory(module)

    def state(self) -> dict[str, Any]:
        """Everything that makes this layer what it is, between two steps; nothing is copied."""
        return {
            "model": self.module.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over a state that was read or received."""
        self.module.load_state_dict(state["model"])
        self.buffers.forget()
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])

    @property
    def state_bytes(self) -> int:
        """About how many bytes a copy takes: parameters, buffers and what the optimizer keeps."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        if self.optimizer is not None:
            kept = (value for state in self.optimizer.state.values() for value in state.values())
            tensors += [value for value in kept if isinstance(value, torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
