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
    """Those below the outputs; None if one leads to a parameter both ways, as in recurrent layers.

    Every backward looks for them, and its host has much to do: so there are few calls in here. Parameters are
    bits.
    """
    inputs = {id(leaf) for leaf in leaves}
    bit_of = {id(parameter): 1 << place for place, parameter in enumerate(parameters)}
    slots: dict[Any, set[int]] = {}
    for output in outputs:
        # An output may be one of the inputs: then there is nothing below it.
        if output.grad_fn is not None:
            slots.setdefault(output.grad_fn, set()).add(output.output_nr)
    roots = set(slots)
    reach: dict[Any, tuple[int, bool]] = {}
    """Parameters that a node leads to, and whether it leads to an input."""
    beside: dict[Any, int] = {}
    """Parameters that lie aside of the way to an input."""
    for node, children in _from_below(slots):
        aside, onward, leads_in = 0, 0, False
        for child in children:
            bits, child_leads_in = reach[child]
            if child_leads_in:
                onward, leads_in = onward | bits, True
            else:
                aside |= bits
        if leads_in or node in roots:
            if aside & onward:
                return None
            beside[node] = aside
        variable = 0 if children else id(getattr(node, "variable", None))
        reach[node] = aside | onward | bit_of.get(variable, 0), leads_in or variable in inputs
    return [
        Border(
            [GradientEdge(node, slot) for slot in sorted(places)],
            [each for place, each in enumerate(parameters) if aside >> place & 1],
        )
        for node, places in slots.items()
        if (aside := beside.get(node, 0))
    ]


def _from_below(slots: dict[Any, set[int]]) -> list[tuple[Any, list[Any]]]:
    """The nodes of a graph after all that they lead to, each with these.

    `slots`: the outputs of each node that get a gradient; of its roots, when this begins. In order:
    tensor-parallel processes must all walk alike, since collectives may lie on the way.
    """
    found: list[tuple[Any, list[Any]]] = []
    below: dict[Any, list[Any]] = {}
    settled: set[Any] = set()
    waiting = list(slots)
    while waiting:
        node = waiting[-1]
        if node in below:
            waiting.pop()
            if node not in settled:
                settled.add(node)
                found.append((node, below[node]))
            continue
        below[node] = children = []
        for child, slot in node.next_functions:
            if child is not None:
                children.append(child)
                slots.setdefault(child, set()).add(slot)
        waiting += children
    return found
