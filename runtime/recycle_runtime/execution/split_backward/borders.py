"""Borders between the paths to the parameters and the paths to the inputs, in the graph of one call.

    output <-- B <-- ... <-- B <-- input        B: a border. Its gradient is computed on the way to the input
               |             |                  and kept; from there it is a short way to its parameters.
           parameters    parameters

Without borders, the second walk repeats everything between them.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

Place = Tensor | GradientEdge


class Border:
    """One node, the parameters beside it, and the gradient that arrives at it."""

    def __init__(self, edges: list[GradientEdge], parameters: list[nn.Parameter]) -> None:
        self.edges, self.parameters = edges, parameters
        self.gradients: list[Tensor | None] = []

    def accumulate(self) -> None:
        """Add to the gradients of its parameters, which have no hooks."""
        pairs = [(e, g) for e, g in zip(self.edges, self.gradients, strict=True) if g is not None]
        if not pairs:
            return
        edges, gradients = [edge for edge, _ in pairs], [gradient for _, gradient in pairs]
        found = gradients_at(self.parameters, edges, gradients)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                # It may be the very tensor that arrived, which others hold: autograd knows when to copy.
                parameter.backward(gradient)
            else:
                parameter.grad.add_(gradient)


def gradients_at(
    places: Sequence[Place], starts: Sequence[Place], gradients: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """Result of autograd.grad. The graph stays: borders may share the nodes that lead to a parameter."""
    grad: Any = torch.autograd.grad
    return grad(starts, places, gradients, retain_graph=True, allow_unused=True)


def find_borders(
    outputs: Sequence[Tensor], leaves: Sequence[Tensor], parameters: Sequence[nn.Parameter]
) -> list[Border] | None:
    """Those below the outputs; None if one leads to a parameter both ways, as in recurrent layers."""
    graph = _Graph(outputs, leaves, parameters)
    borders: list[Border] = []
    for node, slots in graph.slots.items():
        aside, onward = graph.ways(node)
        if aside & onward:
            return None
        if aside:
            found = [each for place, each in enumerate(parameters) if aside >> place & 1]
            borders.append(Border([GradientEdge(node, slot) for slot in sorted(slots)], found))
    return borders


class _Graph:
    """Parameters that every node of a graph leads to (one bit for each), and whether it leads to an input."""

    def __init__(
        self, outputs: Sequence[Tensor], leaves: Sequence[Tensor], parameters: Sequence[nn.Parameter]
    ) -> None:
        self._inputs = {id(leaf) for leaf in leaves}
        self._bits = {id(parameter): 1 << place for place, parameter in enumerate(parameters)}
        self._below: dict[Any, list[Any]] = {}
        self._reach: dict[Any, tuple[int, bool]] = {}
        self.slots: dict[Any, set[int]] = {}
        """The outputs of each node that get a gradient."""
        for output in outputs:
            # An output may be one of the inputs: then there is nothing below it.
            if output.grad_fn is not None:
                self.slots.setdefault(output.grad_fn, set()).add(output.output_nr)
        # In order: tensor-parallel processes must all walk alike, since collectives may lie on the way.
        self._roots = dict.fromkeys(self.slots)
        self._visit()

    def ways(self, node: Any) -> tuple[int, int]:
        """Parameters that it leads to without going towards an input, and on the way to one."""
        if not self._reach[node][1] and node not in self._roots:
            return 0, 0
        aside = onward = 0
        for child in self._below[node]:
            bits, leads_in = self._reach[child]
            aside, onward = (aside, onward | bits) if leads_in else (aside | bits, onward)
        return aside, onward

    def _visit(self) -> None:
        """Depth first; a node is settled after all it leads to."""
        waiting = list(self._roots)
        while waiting:
            node = waiting[-1]
            if node not in self._below:
                waiting += self._enter(node)
            else:
                waiting.pop()
                if node not in self._reach:
                    self._settle(node)

    def _enter(self, node: Any) -> list[Any]:
        edges = [edge for edge in node.next_functions if edge[0] is not None]
        for child, slot in edges:
            self.slots.setdefault(child, set()).add(slot)
        self._below[node] = below = [child for child, _ in edges]
        return below

    def _settle(self, node: Any) -> None:
        variable = id(getattr(node, "variable", None))
        bits, leads_in = self._bits.get(variable, 0), variable in self._inputs
        for child in self._below[node]:
            more, leads = self._reach[child]
            bits, leads_in = bits | more, leads_in or leads
        self._reach[node] = (bits, leads_in)
